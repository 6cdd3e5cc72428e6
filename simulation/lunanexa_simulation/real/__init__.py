"""The fleet as real processes on this machine: sockets, files, signals. Nothing here is simulated but the callers."""
