"""One replica's life as a pure machine, and what a node has to do to make its document true."""
