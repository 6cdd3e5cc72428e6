"""What the product knows of each engine: pure data and functions, one module an engine, no I/O."""
