"""How control state changes: ``decide`` turns a command into events, ``apply`` turns events into state."""
