"""The simulated backend's switches: what they take, and that nothing is changed by what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cagrpc.backends.simulated import SimulatedBackend
from cagrpc.cli.simulation import Switches, configure
from cagrpc.errors import InvalidConfiguration


@pytest.fixture(name="switches")
def _switches(tmp_path: Path) -> Iterator[Switches]:
    backend = SimulatedBackend(tmp_path / "simulated.sqlite")
    yield configure(backend, {"*": {"boot_seconds": 1}, "gone.large": {"stock": 1}}, {"m7i.large", "pool"})
    backend.close()


def test_a_behaviour_is_set_for_what_there_is_and_taken_back(switches: Switches) -> None:
    assert switches.put({"m7i.large": {"stock": 3}, "pool": {"hang": True}})["m7i.large"]["stock"] == 3
    assert switches.get().keys() == {"*", "gone.large", "m7i.large", "pool"}
    assert switches.put({"m7i.large": None, "pool": None, "*": None}).keys() == {"gone.large"}


def test_what_the_configuration_was_only_warned_of_can_be_taken_back(switches: Switches) -> None:
    assert "gone.large" not in switches.put({"gone.large": None})


@pytest.mark.parametrize(
    ("key", "why"),
    [
        pytest.param("m7i.largee", r"^'m7i.largee': is no .* type; did you mean \"m7i.large\"\?", id="a slip"),
        pytest.param("\ud800", r"^'\\ud800': is no node group and no instance type$", id="half a character"),
        pytest.param("", r"^'': is no node group and no instance type$", id="nothing"),
        pytest.param("x" * 10**6, r"^'x{100}': is no", id="endless"),
    ],
)
@pytest.mark.parametrize("value", [{"stock": 1}, None])
def test_a_key_that_is_nothings_name_is_refused_and_nothing_is_changed(
    switches: Switches, key: str, why: str, value: Any
) -> None:
    before = switches.get()
    with pytest.raises(InvalidConfiguration, match=why):
        switches.put({"pool": {"stock": 1}, key: value})
    assert switches.get() == before
