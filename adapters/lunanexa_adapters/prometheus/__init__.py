"""Metrics with the prometheus_client library."""
