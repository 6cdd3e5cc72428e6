"""Signatures with the cryptography library."""
