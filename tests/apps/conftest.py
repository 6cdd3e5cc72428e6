"""Logging is configured by whoever starts a program, and many tests here start one."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _put_logging_back() -> Iterator[None]:
    """What comes after logs as before: in particular it draws no tracebacks for people, which takes seconds each."""
    config = structlog.get_config()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.configure(**config)
    root.handlers[:] = handlers
    root.setLevel(level)
