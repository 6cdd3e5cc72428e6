"""What LunaNexa costs on a machine, measured against the engine called directly: ``python -m benchmarks``."""
