"""The invariants, each one function that looks at a sight and says what is broken, or nothing."""
