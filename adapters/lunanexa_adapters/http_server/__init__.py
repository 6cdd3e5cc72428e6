"""HTTP/1.1 servers for ASGI applications on Trio.

``serve.py`` puts hypercorn behind a guard of ours (HTTP and WebSocket, for the controller);
``lean.py`` is a small h11 server of our own (HTTP only, for the reference engine). Both take the same
limits, give every answer that the server itself makes the caller's error shape, and drain alike.
"""
