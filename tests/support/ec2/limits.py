"""EC2's documented call rates, written down and counted independently of the backend's own buckets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

DOCUMENTED: dict[str, tuple[tuple[float, float], tuple[float, float] | None]] = {
    # action: ((calls at once, calls a second), (instances at once, instances a second))
    "RunInstances": ((5, 2), (1000, 2)),
    "TerminateInstances": ((100, 5), (1000, 20)),
    "DescribeInstances": ((100, 20), None),
    "DescribeLaunchTemplateVersions": ((100, 20), None),
}
_ROUNDING = 1e-6


@dataclass(slots=True)
class AccountLimits:
    """What is left of an account's limits."""

    documented: dict[str, tuple[tuple[float, float], tuple[float, float] | None]] = field(
        default_factory=lambda: dict(DOCUMENTED)
    )
    left: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """By action and what is counted: how much there was, and when."""

    def take(self, action: str, instances: int, now: float) -> bool:
        """Take a call; whether it was within the limits."""
        calls, of_instances = self.documented[action]
        asked: list[tuple[str, int, tuple[float, float]]] = [("calls", 1, calls)]
        if of_instances is not None:
            asked.append(("instances", instances, of_instances))
        after = {}
        for what, amount, (most, per_second) in asked:
            left, at = self.left.get((action, what), (most, now))
            left = min(most, left + (now - at) * per_second)
            if left + _ROUNDING < amount:
                return False
            after[action, what] = (left - amount, now)
        self.left.update(after)
        return True


def busiest_excess(times: Iterable[tuple[float, int]], most: float, per_second: float) -> float:
    """Return by how much the busiest stretch of time is above what a bucket allows; at most 0 where it never is.
    `times` are seconds and amounts, in order."""
    taken = list(times)
    worst = float("-inf")
    for first, (begin, _) in enumerate(taken):
        total = 0
        for seconds, amount in taken[first:]:
            total += amount
            worst = max(worst, total - most - (seconds - begin) * per_second)
    return worst
