"""The simulated backend's behaviours from the configuration at start-up, and over HTTP (`/simulation`) at run time.
Their meaning is in `behaviour`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import EVERYWHERE, Behaviour, behaviour_from_json, behaviour_to_json
from cagrpc.errors import InvalidConfiguration, did_you_mean

_MOST_UNKNOWN = 20  # finding suggestions takes time


class Switches:
    """The page `/simulation`. Keys are instance types, node group ids or `*`."""

    def __init__(self, backend: SimulatedBackend, known: Collection[str]) -> None:
        """`known` are the existing node groups and instance types."""
        self._backend = backend
        self._known = {EVERYWHERE, *known}

    def get(self) -> Mapping[str, Any]:
        return {key: behaviour_to_json(behaviour) for key, behaviour in self._backend.behaviours().items()}

    def put(self, change: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace the behaviour of each key as a whole (missing settings have their defaults); null resets one. Raises
        InvalidConfiguration with every problem, unknown keys included."""
        known = (
            self._known | self._backend.behaviours().keys()
        )  # also keys of the configuration that only caused a warning
        if unknown := [key for key in change if key not in known][:_MOST_UNKNOWN]:
            raise InvalidConfiguration(
                [f"{key[:100]!a}: is no node group and no instance type{did_you_mean(key, known)}" for key in unknown]
            )
        self._backend.set_behaviours(_parsed(change))
        return self.get()


def configure(
    backend: SimulatedBackend, configured: Mapping[str, Behaviour | None], known: Collection[str]
) -> Switches:
    """Set the configured behaviours and reset all others, such as those that an earlier process set at run time.
    `known` are the existing node groups and instance types. Raises InvalidInput."""
    backend.set_behaviours({**dict.fromkeys(backend.behaviours()), **configured})
    return Switches(backend, known)


def _parsed(written: Mapping[str, Any]) -> dict[str, Behaviour | None]:
    parsed: dict[str, Behaviour | None] = {}
    problems: list[str] = []
    for key, value in written.items():
        try:
            parsed[key] = None if value is None else behaviour_from_json(value, key)
        except InvalidConfiguration as error:
            problems += error.problems
    if problems:
        raise InvalidConfiguration(problems)
    return parsed
