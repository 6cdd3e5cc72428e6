"""From a read request to what will be generated and how it will be told; decided before any slot is asked for."""

from collections.abc import Callable, Iterator

import attrs

from lunanexa_apps.engine.dialects import (
    ChatDialect,
    CompletionDialect,
    Dialect,
    Ending,
    Envelope,
    ToolCallDialect,
    Usage,
)
from lunanexa_apps.engine.errors import ApiError, context_exceeded
from lunanexa_apps.engine.generation import Generation
from lunanexa_apps.engine.language_model import LanguageModel
from lunanexa_apps.engine.requests import Form, TextRequest
from lunanexa_apps.engine.sampling import Rng
from lunanexa_apps.engine.settings import DEFAULT_CHAT_TOKENS, DEFAULT_COMPLETION_TOKENS, EngineSettings, Mode
from lunanexa_apps.engine.tokenizer import surely_more_than, tokenise
from lunanexa_apps.engine.tools import arguments
from lunanexa_apps.engine.typed_dialects import MessagesDialect, ResponsesDialect


@attrs.frozen(kw_only=True)
class Answer:
    prompt_tokens: int
    generation: Generation
    dialect: Dialect
    stream: bool

    def ending(self, text: str) -> Ending:
        """How it ended, with all of its text."""
        generation = self.generation
        assert generation.finish_reason is not None
        usage = Usage(self.prompt_tokens, generation.completion_tokens)
        return Ending(text=text, finish=generation.finish_reason, usage=usage, stop=generation.stop)


def count_prompt(text: str, field: str, settings: EngineSettings) -> list[str] | ApiError:
    """The prompt's tokens, with room for one more in the context."""
    limit = settings.context_tokens
    if surely_more_than(text, limit):
        return context_exceeded(field, limit, f"more than {limit} tokens for the prompt alone")
    tokens = tokenise(text)
    if len(tokens) >= limit:
        return context_exceeded(field, limit, f"{len(tokens)} tokens for the prompt alone")
    return tokens


def plan_answer(
    request: TextRequest,
    settings: EngineSettings,
    model: LanguageModel,
    *,
    created: int,
    new_id: Callable[[], str],
) -> Answer | ApiError:
    prompt = count_prompt(request.prompt, request.field, settings)
    if isinstance(prompt, ApiError):
        return prompt
    room = settings.context_tokens - len(prompt)
    asked = request.max_tokens
    if asked is not None and asked > room:
        return context_exceeded(
            request.limit_field,
            settings.context_tokens,
            f"{len(prompt) + asked} tokens: {len(prompt)} in the prompt and {asked} in the completion",
        )
    default = DEFAULT_COMPLETION_TOKENS if request.form is Form.COMPLETION else DEFAULT_CHAT_TOKENS
    options = request.options
    envelope = Envelope(
        id=request.form.value + new_id(),
        created=created,
        model=settings.names[0],
        include_usage=options.include_usage,
    )
    rng = Rng(settings.seed if options.seed is None else options.seed, options.seed is None, request.prompt)
    return Answer(
        prompt_tokens=len(prompt),
        generation=Generation(
            _tokens(request, prompt, settings, model, rng),
            max_tokens=min(room, default if asked is None else asked),
            stops=() if request.tool else options.stops,
            natural_end="tool_calls" if request.tool else "stop",
        ),
        dialect=_dialect(request, envelope, len(prompt), new_id),
        stream=options.stream,
    )


def _dialect(request: TextRequest, envelope: Envelope, prompt_tokens: int, new_id: Callable[[], str]) -> Dialect:
    match request.form:
        case Form.CHAT if request.tool is not None:
            return ToolCallDialect(envelope, f"call_{new_id()}", request.tool.name)
        case Form.CHAT:
            return ChatDialect(envelope)
        case Form.COMPLETION:
            return CompletionDialect(envelope)
        case Form.RESPONSE:
            return ResponsesDialect(envelope, f"msg_{new_id()}")
        case Form.MESSAGE:
            return MessagesDialect(envelope, prompt_tokens)


def _tokens(
    request: TextRequest, prompt: list[str], settings: EngineSettings, model: LanguageModel, rng: Rng
) -> Iterator[str]:
    if request.tool is not None:
        return iter(tokenise(arguments(request.tool, rng)))
    if settings.mode is Mode.ECHO:
        return iter(tokenise(request.echoed))
    options = request.options
    continued = prompt if request.form is Form.COMPLETION else ()
    return model.generate(continued, options.sampling, rng, endless=options.ignore_eos)
