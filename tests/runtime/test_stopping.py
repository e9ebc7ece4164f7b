"""One deadline for all that is stopped."""

from __future__ import annotations

import pytest

from cagrpc.runtime.stopping import Stop, stop_all


def test_all_are_asked_before_any_is_waited_for_and_what_hangs_costs_the_time_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, calls = 100.0, []

    def hanging(name: str, seconds: float) -> Stop:
        def stop(wait_seconds: float) -> None:
            nonlocal now
            calls.append((name, wait_seconds))
            now += min(seconds, wait_seconds)

        return stop

    monkeypatch.setattr("cagrpc.runtime.stopping.monotonic", lambda: now)
    stop_all([hanging("a", 1.0), hanging("b", 60.0), hanging("c", 60.0)], 5.0)
    assert calls == [("a", 0.0), ("b", 0.0), ("c", 0.0), ("a", 5.0), ("b", 4.0), ("c", 0.0)]
    assert now == 105.0
