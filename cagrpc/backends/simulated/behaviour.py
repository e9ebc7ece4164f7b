"""Behaviours of simulated instances, faults included: the settings, their JSON form, and their effect on an order
(`outcome`). Instances are stored in `backend`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from cagrpc import errors
from cagrpc.forms import Duration, Section, names_in_files
from cagrpc.problems import sentences

EVERYWHERE = "*"
"""The key of the behaviour that applies where no other does."""

Refusal = Literal["quota", "configuration"]
REFUSALS: tuple[Refusal, ...] = get_args(Refusal)
"""What `Behaviour.refusal` may be, as values of `ErrorKind`; a lack of capacity is `stock`."""

_Seconds = Annotated[float, Duration("0s", "168h", '"30s"', was_number=True)]
_Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
_Probability = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class Behaviour(Section):
    """The behaviour of one instance type, or of one node group, or (`*`) of all others.

    All but `unreachable`, `delete` and `lost_answer_probability` are decided when an instance is ordered: a change is
    for later orders.
    """

    boot_seconds: _Seconds = 30.0
    """How long after its order an instance runs."""
    boot_jitter_seconds: _Seconds = 0.0
    """Up to so much is added to each instance's boot time."""
    delete_seconds: _Seconds = 5.0
    """How long a deleted instance is still listed as being deleted."""
    stock: _Count | None = None
    """How many instances can exist at once. An order for more is refused at once and as a whole. By default there is no
    limit."""
    late_shortage: _Count | None = None
    """How many instances can exist at once, without the backend knowing it at once: orders for more are accepted, and
    the surplus instances fail while they are created. By default there is no limit."""
    failure_probability: _Probability = 0.0
    """How likely it is that an instance fails while it is created: a fraction from 0 to 1."""
    fail_after_seconds: _Seconds = 5.0
    """How long after its order a failing instance fails."""
    vanish_probability: _Probability = 0.0
    """How likely it is that an instance vanishes without anybody asking for it: a fraction from 0 to 1."""
    vanish_after_seconds: _Seconds = 60.0
    """How long after its order a vanishing instance vanishes, whether it runs by then or not."""
    hang: bool = False
    """Whether instances are created for ever and never run."""
    list_delay_seconds: _Seconds = 0.0
    """How long an instance is missing from lists after its order, as with a cloud that is eventually consistent."""
    id_after_seconds: _Seconds = 0.0
    """How long after its order an instance has its id; until then its token stands for it."""
    refusal: Refusal | None = None
    """Why orders are refused, at once and as a whole: `quota`, because the account may not have more, or
    `configuration`, because their parameters are wrong. By default they are not refused."""
    lost_answer_probability: _Probability = 0.0
    """How likely it is that an order or a deletion is carried out and its answer is lost: a fraction from 0 to 1."""
    unreachable: bool = False
    """Whether orders and deletions of these instances find the backend unreachable. Under `*` every call does."""


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """The future of an instance, decided at its order. Times are seconds of the clock; None means never."""

    running_at_seconds: float | None
    fails_at_seconds: float | None
    vanishes_at_seconds: float | None
    listed_at_seconds: float
    named_at_seconds: float
    """When its id is known."""


def outcome(behaviour: Behaviour, now: float, standing: int, rng: random.Random) -> OrderOutcome:
    """Decide the outcome of an order. `standing` counts the healthy instances that share the stock. Draws the same
    numbers from `rng` whatever the settings, so that a changed setting affects only what it is for."""
    jitter, fails, vanishes = rng.random(), rng.random(), rng.random()
    short = behaviour.late_shortage is not None and standing >= behaviour.late_shortage
    named_at = now + behaviour.id_after_seconds
    boots_at = now + behaviour.boot_seconds + jitter * behaviour.boot_jitter_seconds
    failing = short or fails < behaviour.failure_probability
    return OrderOutcome(
        running_at_seconds=None if behaviour.hang else max(boots_at, named_at),
        fails_at_seconds=now + behaviour.fail_after_seconds if failing else None,
        vanishes_at_seconds=now + behaviour.vanish_after_seconds if vanishes < behaviour.vanish_probability else None,
        listed_at_seconds=now + behaviour.list_delay_seconds,
        named_at_seconds=named_at,
    )


@cache
def _reader() -> TypeAdapter[Behaviour]:
    return TypeAdapter(Behaviour)


def behaviour_to_json(behaviour: Behaviour) -> dict[str, object]:
    """Return all settings by name."""
    found: dict[str, object] = _reader().dump_python(behaviour, mode="json", by_alias=True)
    return found


def behaviour_from_json(value: object, path: str = "behaviour") -> Behaviour:
    """Read settings by name; missing ones have their defaults. Raises `errors.InvalidConfiguration` with every problem,
    each beginning with `path` and the setting's name."""
    try:
        return _reader().validate_python(value)
    except ValidationError as error:
        raise errors.InvalidConfiguration(sentences(error, path, tuple(names_in_files(Behaviour)))) from error
