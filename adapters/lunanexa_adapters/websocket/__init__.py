"""``/v1/stream``: many workloads on one WebSocket, as an ASGI application over driving ports.

``application`` opens and ends connections; ``connection`` is the loop of one; ``flow`` is one workload, which a
resumable one's connection does not outlast; ``log`` holds its numbered output; ``resumables`` finds it again.
It touches no socket: a server, or the simulation, carries the messages.
"""
