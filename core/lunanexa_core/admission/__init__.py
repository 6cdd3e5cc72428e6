"""Whether a request may come in, and in which order what came in is served."""
