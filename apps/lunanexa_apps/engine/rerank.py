"""A rerank request: documents put in the order of their likeness to a query.

The likeness is that of the hashed words (see ``embeddings``), from 0 to 1. Source: https://jina.ai/reranker/ , as
vLLM and llama.cpp answer it.
"""

import attrs
import trio

from lunanexa_apps.engine.answers import count_prompt
from lunanexa_apps.engine.embeddings import embed
from lunanexa_apps.engine.errors import ApiError
from lunanexa_apps.engine.fields import Fields, Json
from lunanexa_apps.engine.settings import DEFAULT_DIMENSIONS, EngineSettings

_MAX_DOCUMENTS = 2048


@attrs.frozen(kw_only=True)
class RerankRequest:
    model: str
    query: str
    documents: tuple[str, ...]
    top: int
    return_documents: bool


def read_rerank(values: "dict[str, Json]") -> RerankRequest | ApiError:
    fields = Fields(values)
    model = fields.text("model")
    query = fields.text("query")
    given = fields.get("documents")
    listed = given if isinstance(given, list) else []
    texts = [document.get("text") if isinstance(document, dict) else document for document in listed]
    documents = tuple(text for text in texts if isinstance(text, str))
    if len(documents) != len(listed) or not 0 < len(listed) <= _MAX_DOCUMENTS:
        fields.refuse("documents", f"must be a list of 1 to {_MAX_DOCUMENTS} texts.")
    top = fields.integer("top_n", 1, 1 << 63)
    return_documents = fields.flag("return_documents")
    if fields.fault is not None:
        return fields.fault
    return RerankRequest(
        model=model,
        query=query,
        documents=documents,
        top=len(documents) if top is None else top,
        return_documents=return_documents,
    )


def count_documents(request: RerankRequest, settings: EngineSettings) -> list[list[str]] | ApiError:
    """The tokens of the query, then of each document."""
    counted: list[list[str]] = []
    for field, text in (("query", request.query), *(("documents", document) for document in request.documents)):
        tokens = count_prompt(text, field, settings)
        if isinstance(tokens, ApiError):
            return tokens
        counted.append(tokens)
    return counted


async def rerank_document(
    request: RerankRequest, counted: list[list[str]], settings: EngineSettings, rerank_id: str
) -> dict[str, object]:
    asked = embed(counted[0], DEFAULT_DIMENSIONS)
    scores: list[float] = []
    for tokens in counted[1:]:
        # One text can take milliseconds; others shall have their turn between two.
        await trio.lowlevel.checkpoint()
        told = embed(tokens, DEFAULT_DIMENSIONS)
        scores.append(round((1 + sum(one * other for one, other in zip(asked, told, strict=True))) / 2, 6))
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    results: list[dict[str, object]] = []
    for index in order[: request.top]:
        shown = {"document": {"text": request.documents[index]}} if request.return_documents else {}
        results.append({"index": index, "relevance_score": scores[index], **shown})
    used = sum(map(len, counted))
    usage = {"prompt_tokens": used, "total_tokens": used}
    return {"id": f"rerank-{rerank_id}", "model": settings.names[0], "usage": usage, "results": results}
