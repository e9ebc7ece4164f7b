"""Keep EC2's documented call rates: token buckets of the account for calls and for the instances that they are about.
What is called is in `api`.

Sizes and refills are those of "Request throttling for the Amazon EC2 API" (EC2 developer guide); an account's limits
for launches can be raised by AWS, so these are configured. Buckets are an account's, per Region: whoever else calls
takes from them as well, and EC2's own refusal (`CallRates.throttled`) empties ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cagrpc import errors
from cagrpc.runtime.clock import EpochClock

LONGEST_WAIT_SECONDS = 2.0
"""A call that would have to wait longer is for a later step of the fleet."""


@dataclass(frozen=True, slots=True)
class TokenRate:
    """A bucket that holds `most` and regains `per_second`."""

    most: float
    per_second: float


@dataclass(frozen=True, slots=True)
class ActionRates:
    """The two buckets of an action of the API."""

    calls: TokenRate
    instances: TokenRate | None = None
    """For the instances that its calls are about; None where these do not count."""


LAUNCHED_INSTANCES = TokenRate(1000, 2)
LAUNCH_CALLS = TokenRate(5, 2)
_NON_MUTATING = ActionRates(TokenRate(100, 20))


def documented_rates(launched_instances: TokenRate = LAUNCHED_INSTANCES) -> Mapping[str, ActionRates]:
    """Return the rates of every action that the backend uses, by its name in the API."""
    return {
        "RunInstances": ActionRates(LAUNCH_CALLS, launched_instances),
        "TerminateInstances": ActionRates(TokenRate(100, 5), TokenRate(1000, 20)),
        "DescribeInstances": _NON_MUTATING,
        "DescribeLaunchTemplateVersions": _NON_MUTATING,
    }


class _Bucket:
    """Full at first. `now` is in seconds and may be set back, which refills nothing."""

    def __init__(self, rate: TokenRate, now: float) -> None:
        self._rate = rate
        self._left = rate.most
        self._at = now

    def wait_seconds(self, amount: float, now: float) -> float:
        """Return how long until there is so much; more than the bucket holds is taken once it is full."""
        self._left = min(self._rate.most, self._left + max(0.0, now - self._at) * self._rate.per_second)
        self._at = now
        return max(0.0, min(amount, self._rate.most) - self._left) / self._rate.per_second

    def take(self, amount: float) -> None:
        self._left -= amount

    def drain(self) -> None:
        self._left = min(self._left, 0.0)


class CallRates:
    """The buckets of all actions. For one thread."""

    def __init__(self, rates: Mapping[str, ActionRates], clock: EpochClock, sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        now = clock()
        self._calls = {action: _Bucket(rate.calls, now) for action, rate in rates.items()}
        self._instances = {
            action: _Bucket(rate.instances, now) for action, rate in rates.items() if rate.instances is not None
        }

    def acquire(self, action: str, instances: int = 0) -> None:
        """Wait until a call about so many instances may be made. Raises `Unavailable` where that takes long, with
        nothing taken."""
        wait = self._wait_seconds(action, instances)
        if wait > LONGEST_WAIT_SECONDS:
            about = f" of {instances} instances" if instances else ""
            raise errors.Unavailable(f"EC2: the call rate leaves no room for {action}{about} for {wait:.1f} s")
        while wait > 0:
            self._sleep(wait)
            wait = self._wait_seconds(action, instances)
        self._calls[action].take(1)
        if action in self._instances:
            self._instances[action].take(instances)

    def throttled(self, action: str) -> None:
        """EC2 has refused a call for its rate: begin with empty buckets."""
        self._calls[action].drain()

    def _wait_seconds(self, action: str, instances: int) -> float:
        now = self._clock()
        wait = self._calls[action].wait_seconds(1, now)
        if action in self._instances:
            wait = max(wait, self._instances[action].wait_seconds(instances, now))
        return wait
