"""Every test of the conformance suite can fail: backends that break one promise each are caught, each by the tests that
are about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from cagrpc.errors import CagrpcError
from cagrpc.testing import Ability, BackendConformance, Cloud
from cagrpc.testing.fleet_suite import FleetRun
from cagrpc.testing.processes import Processes
from tests.support.simulated_cloud import SimulatedCloud
from tests.testing.broken.creation import CREATION
from tests.testing.broken.deletion import DELETION
from tests.testing.broken.failures import FAILURES
from tests.testing.broken.lists import LISTS
from tests.testing.broken.sound import SharedCloud, Sound

BROKEN = {**CREATION, **LISTS, **DELETION, **FAILURES}
TESTS = sorted(name for name in dir(BackendConformance) if name.startswith("test_"))


def _run(test: str, cloud: Cloud, directory: Path) -> str | None:
    """Run one test of the suite; return how it fails, None where it does not."""
    method: Callable[..., None] = getattr(BackendConformance(), test)
    asks_fleet = "whole" in method.__annotations__
    try:
        run = Processes(cloud)
        try:
            method(FleetRun(run, directory / "journal.sqlite") if asks_fleet else run)
        finally:
            cloud.recover()
            run.close()
    except (AssertionError, CagrpcError, pytest.fail.Exception) as error:
        return str(error)
    finally:
        cloud.close()
    return None


@pytest.mark.parametrize("test", TESTS)
def test_a_sound_backend_passes(test: str, tmp_path: Path) -> None:
    assert _run(test, SharedCloud(tmp_path), tmp_path) is None


@pytest.mark.parametrize(
    ("broken", "test", "message"),
    [(broken, test, message) for broken, tests in BROKEN.items() for test, message in tests.items()],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_broken_backend_is_caught(broken: type[Sound], test: str, message: str, tmp_path: Path) -> None:
    found = _run(test, SharedCloud(tmp_path, broken), tmp_path)
    assert found is not None, f"{broken.__name__} passes {test}"
    assert re.search(message, found), found


def test_no_test_of_the_suite_passes_with_everything() -> None:
    assert {test for tests in BROKEN.values() for test in tests} == set(TESTS)


def test_a_fault_that_is_neither_written_nor_lacking_fails(tmp_path: Path) -> None:
    class Unfinished(SimulatedCloud):
        lacks: ClassVar = {Ability.VANISH: "nothing is ever lost here"}
        vanish = Cloud.vanish
        run_out = Cloud.run_out
        add_stranger = Cloud.add_stranger

    found = _run("test_a_shortage_is_told_as_one", Unfinished(tmp_path), tmp_path)
    assert found == "Unfinished.run_out is not written; write it, or say in Unfinished.lacks why there is none"
    with pytest.raises(pytest.skip.Exception, match="cannot vanish: nothing is ever lost here"):
        _run("test_an_instance_that_vanishes_is_listed_no_longer", Unfinished(tmp_path), tmp_path)
