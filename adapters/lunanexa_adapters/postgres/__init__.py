"""The journal in PostgreSQL, for a store outside the controller's machine."""
