"""The same services in one process, from one seed, on virtual time."""
