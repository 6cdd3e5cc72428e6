"""The world: one folder a technology, one file a port."""
