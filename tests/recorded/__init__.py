"""What real servers answered, by path; each file's ``source`` says which server, and how it was asked."""

import json
from pathlib import Path


def recorded(server: str) -> dict[str, bytes]:
    """The bodies of its answers with status 200, by path: ``vllm``, ``llama-server`` or ``ollama``."""
    document = json.loads((Path(__file__).parent / f"{server}.json").read_text())
    return {path: body.encode() for path, body in document["answers"].items()}
