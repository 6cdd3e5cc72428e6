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
