"""The rules: frozen values and pure functions. No ``await``, clock, randomness or I/O lives here."""
