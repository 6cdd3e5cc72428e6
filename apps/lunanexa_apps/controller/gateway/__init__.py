"""The gateway: one request's path from the HTTP edge to an engine and back, and its receipt.

``service`` admits, waits and settles; ``attempts`` asks replicas; ``relay`` passes one engine's answer on;
``outlet`` is the client's side of a stream; ``progress`` is what is known of a request at any moment, so
that one guard can settle it on every exit; ``report`` tells metrics and the access log.
"""
