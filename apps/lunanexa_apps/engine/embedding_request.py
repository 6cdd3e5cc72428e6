"""An embeddings request: read, counted, and answered with hashed vectors.

Source: https://platform.openai.com/docs/api-reference/embeddings/create
"""

import attrs
import trio

from lunanexa_apps.engine.answers import count_prompt
from lunanexa_apps.engine.embeddings import as_base64, embed
from lunanexa_apps.engine.errors import ApiError
from lunanexa_apps.engine.fields import Fields, Json
from lunanexa_apps.engine.settings import DEFAULT_DIMENSIONS, MAX_DIMENSIONS, EngineSettings

_MAX_INPUTS = 2048


@attrs.frozen(kw_only=True)
class EmbeddingRequest:
    model: str
    texts: tuple[str, ...]
    dimensions: int
    base64: bool


def read_embeddings(values: "dict[str, Json]") -> EmbeddingRequest | ApiError:
    fields = Fields(values)
    model = fields.text("model")
    given = fields.get("input")
    listed = [given] if isinstance(given, str) else given
    texts = tuple(text for text in listed if isinstance(text, str) and text) if isinstance(listed, list) else ()
    if not isinstance(listed, list) or len(texts) != len(listed) or not 0 < len(texts) <= _MAX_INPUTS:
        fields.refuse("input", f"must be a string or a list of 1 to {_MAX_INPUTS} strings, none of them empty.")
    dimensions = fields.integer("dimensions", 1, MAX_DIMENSIONS)
    encoding = fields.text("encoding_format", "float")
    if encoding not in ("float", "base64"):
        fields.refuse("encoding_format", "must be 'float' or 'base64'.")
    if fields.fault is not None:
        return fields.fault
    return EmbeddingRequest(
        model=model,
        texts=texts,
        dimensions=DEFAULT_DIMENSIONS if dimensions is None else dimensions,
        base64=encoding == "base64",
    )


def count_inputs(request: EmbeddingRequest, settings: EngineSettings) -> list[list[str]] | ApiError:
    counted: list[list[str]] = []
    for text in request.texts:
        tokens = count_prompt(text, "input", settings)
        if isinstance(tokens, ApiError):
            return tokens
        counted.append(tokens)
    return counted


async def embedding_document(
    request: EmbeddingRequest, inputs: list[list[str]], settings: EngineSettings
) -> dict[str, object]:
    data: list[dict[str, object]] = []
    for index, tokens in enumerate(inputs):
        # One text can take milliseconds; others shall have their turn between two.
        await trio.lowlevel.checkpoint()
        vector = embed(tokens, request.dimensions)
        value = as_base64(vector) if request.base64 else list(vector)
        data.append({"object": "embedding", "index": index, "embedding": value})
    used = sum(map(len, inputs))
    return {
        "object": "list",
        "data": data,
        "model": settings.names[0],
        "usage": {"prompt_tokens": used, "total_tokens": used},
    }
