"""``lunanexa up``: a controller, a node agent and one model on this machine, supervised by one process."""
