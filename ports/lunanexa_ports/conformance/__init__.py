"""One suite a port, run on every implementation of it; only tests import them."""
