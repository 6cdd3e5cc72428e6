"""Our own HTTP/1.1 client: h11 for the protocol, Trio for the sockets."""
