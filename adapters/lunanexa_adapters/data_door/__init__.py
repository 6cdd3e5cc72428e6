"""A node's data listener: mutual TLS in front of its engines, byte for byte."""
