"""The limits of a key at admission: all of them are looked at before anything is taken."""

from lunanexa_core.admission.windows import KeyWindows, RateWindow
from lunanexa_core.allowance import Allowance, Allowances
from lunanexa_core.ids import WorkloadId
from lunanexa_core.keys import ApiKey
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_core.workload import Settlement, WorkloadRequest


def over_limit(state: State, key: ApiKey, request: WorkloadRequest, now: Instant) -> Refusal | None:
    """Why the key may not take this request now, with the time from which on it may."""
    tokens_limit = key.tokens_per_minute
    if tokens_limit is not None and request.reserved_tokens > tokens_limit:
        return Refusal(
            outcome=Outcome.INVALID_REQUEST,
            message=f"The request may use {request.reserved_tokens} tokens, more than this key has in a minute "
            f"({tokens_limit}); ask for fewer with max_tokens, or send less.",
            param="max_tokens",
        )
    allowances = allowances_of(state, key, now)
    if key.concurrency is not None and state.open_of_key.get(key.key, 0) >= key.concurrency:
        return Refusal(
            outcome=Outcome.RATE_LIMITED,
            message=f"This key may have {key.concurrency} requests in progress at once.",
            allowances=allowances,
        )
    windows = state.windows.get(key.key, KeyWindows())
    waits: list[tuple[int, str]] = []
    if key.requests_per_minute is not None:
        wait_ms = windows.requests.fits_in_ms(now.wall_ms, 1, key.requests_per_minute)
        waits.append((wait_ms, f"{key.requests_per_minute} requests"))
    if tokens_limit is not None:
        wait_ms = windows.tokens.fits_in_ms(now.wall_ms, request.reserved_tokens, tokens_limit)
        waits.append((wait_ms, f"{tokens_limit} tokens"))
    wait_ms, limit = max(waits, default=(0, ""))
    if wait_ms == 0:
        return None
    return Refusal(
        outcome=Outcome.RATE_LIMITED,
        message=f"This key may use {limit} a minute.",
        retry_after_ms=wait_ms,
        allowances=allowances,
    )


def allowances_of(state: State, key: ApiKey, now: Instant) -> Allowances:
    """What is left of the key's limits a minute."""
    windows = state.windows.get(key.key, KeyWindows())
    return Allowances(
        requests=_allowance(windows.requests, key.requests_per_minute, now),
        tokens=_allowance(windows.tokens, key.tokens_per_minute, now),
    )


def used_tokens(settlement: Settlement) -> int | None:
    """What the windows are settled with; ``None`` when no engine worked: refused in the queue or by the engine,
    or ended before one was asked."""
    usage = settlement.usage
    tokens = usage.input_tokens + usage.output_tokens
    if tokens:
        return tokens
    refused = bool(settlement.attempts) and (settlement.attempts[-1].status or 0) >= 400
    return None if settlement.outcome is not None or refused else 0


def voided(state: State, now: Instant) -> list[WorkloadId]:
    """The open workloads whose key is in force no more: revoked, or expired."""
    return [
        workload_id
        for workload_id, workload in state.open.items()
        if (key := state.keys.get(workload.key)) is None or key.expired(now.wall_ms)
    ]


def _allowance(window: RateWindow, limit: int | None, now: Instant) -> Allowance | None:
    if limit is None:
        return None
    remaining = max(0, limit - window.spent(now.wall_ms))
    return Allowance(limit=limit, remaining=remaining, reset_ms=window.reset_ms(now.wall_ms))
