"""Which replica serves a request: may it (``routable``), how well (``rank``), which one (``pick``)."""
