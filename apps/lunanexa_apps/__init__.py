"""Services (Trio loops over ports) and composition roots (``main.py``)."""
