"""Logging as it was before each test: a server sets it up for the whole process, also one that refuses to start."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

_NAMES = ("", "cagrpc", "urllib3", "kubernetes")
"""Of the loggers that `cagrpc.server.logs` changes."""


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in _NAMES]
    before = [(each.level, list(each.handlers)) for each in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
