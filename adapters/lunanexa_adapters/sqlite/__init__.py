"""Durable stores in SQLite files: the journal of a controller and the memory of a node agent."""
