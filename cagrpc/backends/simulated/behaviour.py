"""Behaviours of simulated instances, faults included: the settings, their JSON form, and their effect on an order
(`outcome`). Instances are stored in `backend`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cagrpc import errors
from cagrpc.errors import ErrorKind

EVERYWHERE = "*"
"""The key of the behaviour that applies where no other does."""

_MOST_SECONDS = 7 * 86_400.0
REFUSALS = tuple(kind.value for kind in (ErrorKind.QUOTA, ErrorKind.CONFIGURATION))
"""What `Behaviour.refusal` may be; a lack of capacity is `stock`."""

_MOST_INSTANCES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The behaviour of one instance type, or of one node group, or (`*`) of all others.

    All but `unreachable`, `delete_seconds` and `lost_answer_probability` are decided when an instance is ordered: a
    change is for later orders.
    """

    boot_seconds: float = 30.0
    """How long after its order an instance runs. Measured in seconds."""

    boot_jitter_seconds: float = 0.0
    """Up to so much is added to each instance's boot time. Measured in seconds."""

    delete_seconds: float = 5.0
    """How long a deleted instance is still listed as being deleted. Measured in seconds."""

    stock: int | None = None
    """How many instances can exist at once; an order for more is refused at once as a whole. None: any number."""

    late_shortage: int | None = None
    """How many instances can exist at once without the backend knowing it at once: orders for more are taken, and the
    surplus instances fail while they are created. None: any number."""

    failure_probability: float = 0.0
    """How likely an instance fails while it is created. A fraction, 0 to 1."""

    fail_after_seconds: float = 5.0
    """How long after its order a failing instance fails. Measured in seconds."""

    vanish_probability: float = 0.0
    """How likely an instance vanishes without anybody's asking. A fraction, 0 to 1."""

    vanish_after_seconds: float = 60.0
    """How long after its order a vanishing instance vanishes, whether it runs by then or not. Measured in seconds."""

    hang: bool = False
    """Instances are created for ever and never run."""

    list_delay_seconds: float = 0.0
    """How long an instance is missing from lists after its order, as with a cloud that is eventually consistent.
    Measured in seconds."""

    id_after_seconds: float = 0.0
    """How long after its order an instance has its id; until then its token stands for it. Measured in seconds."""

    refusal: str | None = None
    """Orders are refused at once as a whole: `quota`, as the account may not have more, or `configuration`, as their
    parameters are wrong. None: they are not."""

    lost_answer_probability: float = 0.0
    """How likely an order or a delete is carried out and its answer is lost. A fraction, 0 to 1."""

    unreachable: bool = False
    """Orders and deletes of these instances find the backend out of reach; under `*` every call does."""


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


def behaviour_to_json(behaviour: Behaviour) -> dict[str, object]:
    """Return all settings by name."""
    return asdict(behaviour)


def behaviour_from_json(value: object, path: str = "behaviour") -> Behaviour:
    """Read settings by name; missing ones have their defaults. Raises `errors.InvalidConfiguration` with every problem,
    each beginning with `path` and the setting's name."""
    if not isinstance(value, Mapping):
        raise errors.InvalidConfiguration([f"{path}: expected settings by name, found {_shown(value)}"])
    defaults = asdict(Behaviour())
    problems = [
        f"{path}.{_name(name)}: no such setting; there are {', '.join(field.name for field in fields(Behaviour))}"
        for name in value
        if name not in defaults
    ]
    for name, given in value.items():
        if name in defaults and (wrong := _wrong(name, given)) is not None:
            problems.append(f"{path}.{name}: {wrong}, found {_shown(given)}")
    if problems:
        raise errors.InvalidConfiguration(problems)
    checked: dict[str, Any] = {
        name: float(given) if isinstance(defaults[name], float) else given for name, given in value.items()
    }
    return Behaviour(**checked)


def _wrong(name: str, given: object) -> str | None:
    """Return the requirement that a setting violates; None where it is valid."""
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if name.endswith("_seconds"):
        right = number and 0 <= given <= _MOST_SECONDS  # type: ignore[operator]
        return None if right else f"must be a number of seconds from 0 to {_MOST_SECONDS:g}"
    if name.endswith("_probability"):
        right = number and 0 <= given <= 1  # type: ignore[operator]
        return None if right else "must be a fraction from 0 to 1"
    if name in ("stock", "late_shortage"):
        right = given is None or (number and isinstance(given, int) and 0 <= given <= _MOST_INSTANCES)
        return None if right else f"must be a whole number from 0 to {_MOST_INSTANCES}, or null"
    if name == "refusal":
        return None if given in (None, *REFUSALS) else f"must be {' or '.join(REFUSALS)}, or null"
    return None if isinstance(given, bool) else "must be true or false"


def _name(name: object) -> str:
    """Return a setting's name for messages: JSON names can have lone surrogates and any length."""
    return f"{name:.60}".encode(errors="backslashreplace").decode()


def _shown(value: object) -> str:
    return f"{value!r:.60}"
