"""Backups of a store: one signed file with all rows, made beside a running controller, verified, and restored."""
