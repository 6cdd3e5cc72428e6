"""The HTTP edge as ASGI applications: they translate HTTP into calls of driving ports and touch no socket.

``root`` is what a server is given. It sends ``/v1`` and the probes to ``data_plane`` (no framework between
the socket and the relay) and ``/admin/v1`` and ``/node/v1`` to ``control`` (a quart-trio application).
"""
