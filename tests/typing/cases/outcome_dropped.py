"""Refused: the outcome of a call, or the reason for an ignored complaint, is thrown away."""

import enum


class Renewal(enum.Enum):
    RENEWED = "renewed"
    LAPSED = "lapsed"


async def renew() -> Renewal:
    return Renewal.LAPSED


async def drops_the_outcome() -> None:
    await renew()  # says pyright: reportUnusedCallResult


TEXT: str = 1  # type: ignore  # says mypy: ignore-without-code
