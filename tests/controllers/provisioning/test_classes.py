"""Which requests are ours, and on what terms."""

from __future__ import annotations

from typing import Any

import pytest

from cagrpc.controllers.provisioning.classes import (
    ATOMIC_SCALE_UP,
    CHECK_CAPACITY,
    UPSTREAM_ATOMIC_SCALE_UP,
    UPSTREAM_CHECK_CAPACITY,
    Terms,
    service_of,
    terms,
)
from cagrpc.controllers.provisioning.model import ProvisioningRequest, Service
from cagrpc.controllers.settings import ClassBehaviour

ATOMIC = Service(ClassBehaviour.ATOMIC)


def request(class_name: str = ATOMIC_SCALE_UP, **parameters: str) -> ProvisioningRequest:
    return ProvisioningRequest("uid", "ns", "r", class_name, (), parameters)


def nothing(_: str) -> None:
    return None


def test_the_proposals_classes_are_always_ours() -> None:
    assert service_of(request(), (), nothing) == Service(ClassBehaviour.ATOMIC, books=True)
    assert service_of(request(CHECK_CAPACITY), (), nothing) == Service(ClassBehaviour.CHECK, books=False)


@pytest.mark.parametrize(
    ("class_name", "behaviour"),
    [(UPSTREAM_CHECK_CAPACITY, ClassBehaviour.CHECK), (UPSTREAM_ATOMIC_SCALE_UP, ClassBehaviour.ATOMIC)],
)
def test_upstreams_are_ours_where_they_are_left_to_us(class_name: str, behaviour: ClassBehaviour) -> None:
    assert service_of(request(class_name), (), nothing) is None
    assert service_of(request(class_name), set(ClassBehaviour) - {behaviour}, nothing) is None
    assert service_of(request(class_name), {behaviour}, nothing) == Service(behaviour, books=True)


def test_what_is_for_a_certain_autoscaler_is_left_to_it() -> None:
    named = request(UPSTREAM_CHECK_CAPACITY, processorInstance="other")
    assert service_of(named, {ClassBehaviour.CHECK}, nothing) is None


def test_a_class_of_the_cluster_is_what_it_says_and_any_other_is_nobodys() -> None:
    presets = {"gold": Service(ClassBehaviour.ATOMIC, parameters={"noRetry": "true"})}
    assert service_of(request("gold"), (), presets.get) is presets["gold"]
    assert service_of(request("silver"), (), presets.get) is None


def test_a_requests_own_parameters_win_over_its_classs() -> None:
    gold = Service(ClassBehaviour.ATOMIC, parameters={"ValidUntilSeconds": "60", "noRetry": "true"})
    assert terms(request("gold"), gold) == Terms(60.0, no_retry=True)
    assert terms(request("gold", ValidUntilSeconds="2h30m", noRetry="False"), gold) == Terms(9000.0, no_retry=False)


@pytest.mark.parametrize(
    ("parameters", "reported"),
    [
        ({"Colour": "blue"}, "'Colour', expected one of ValidUntilSeconds, noRetry"),
        ({"ValidUntilSeconds": "soon"}, "found 'soon'"),
        ({"ValidUntilSeconds": "0"}, "found '0'"),
        ({"ValidUntilSeconds": "-5s"}, "found '-5s'"),
        ({"noRetry": "maybe"}, "found 'maybe', expected true or false"),
    ],
)
def test_invalid_parameters_are_reported(parameters: dict[str, Any], reported: str) -> None:
    found = terms(request(**parameters), ATOMIC)
    assert isinstance(found, str)
    assert reported in found
