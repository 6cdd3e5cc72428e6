"""The one real clock, the one source of identifiers and randomness, and this machine's memory and processors."""
