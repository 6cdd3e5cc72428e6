"""What is left of a key's limits a minute, as its caller is told with each answer."""

import attrs


@attrs.frozen(kw_only=True)
class Allowance:
    """One limit. ``reset_ms``: until nothing of it is taken any more, if nobody takes more."""

    limit: int
    remaining: int
    reset_ms: int


@attrs.frozen(kw_only=True)
class Allowances:
    """Both limits a minute; ``None``: not limited."""

    requests: Allowance | None = None
    tokens: Allowance | None = None


UNLIMITED = Allowances()


def limit_headers(allowances: Allowances) -> tuple[tuple[str, str], ...]:
    """The headers of OpenAI's that tell what is left of a key's limits; resets in whole seconds, rounded up.
    Source: https://platform.openai.com/docs/guides/rate-limits"""
    found: list[tuple[str, str]] = []
    for name, allowance in (("requests", allowances.requests), ("tokens", allowances.tokens)):
        if allowance is not None:
            found += [
                (f"x-ratelimit-limit-{name}", str(allowance.limit)),
                (f"x-ratelimit-remaining-{name}", str(allowance.remaining)),
                (f"x-ratelimit-reset-{name}", f"{-(-allowance.reset_ms // 1000)}s"),
            ]
    return tuple(found)
