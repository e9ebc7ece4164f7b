"""Steps that are done again and again: what goes wrong is told once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from threading import Event

import pytest

from cagrpc.cli.loops import Loop
from cagrpc.errors import Unavailable


@pytest.mark.parametrize("kind", [Unavailable, ValueError])
def test_the_same_trouble_is_told_once_until_it_is_over(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    done = Event()

    def steps() -> Iterator[Exception | None]:
        yield from (kind("gone"), kind("gone"), kind("worse"), None, kind("worse"))
        done.set()
        while True:
            yield None

    left = steps()

    def step() -> None:
        if (error := next(left)) is not None:
            raise error

    loop = Loop("a step", step, 0.001)
    with caplog.at_level(logging.WARNING):
        loop.start()
        assert done.wait(30)
        loop.stop(30)
    told = [f"{record.message} {record.exc_info[1] if record.exc_info else ''}" for record in caplog.records]
    assert ["worse" in each for each in told] == [False, True, True]
