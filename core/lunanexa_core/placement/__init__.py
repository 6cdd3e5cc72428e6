"""Where a replica runs: can it (``feasible``), how well (``rank``), what changes (``reconcile``)."""
