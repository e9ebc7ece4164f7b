"""Random nodes with devices, pods with claims on them, and small problems of both."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from solver import DeviceClaim, DeviceRequest, Devices, NodeGroup, PodSet, PodSpec, Problem
from solver.model import DeviceAlternative, Node
from tests.support.solver.device_examples import (
    GPUS,
    MIXED,
    NUMA,
    PAIRS,
    PCIE,
    SOCKETS,
    asks,
    claim,
    first_of,
    together,
)
from tests.support.solver.device_examples import devices as devices_of

SELECTORS = ("any", "big", "nic")


@st.composite
def devices(draw: st.DrawFn, most: int = 4) -> tuple[Devices, ...]:
    """Draw the devices of one node, `most` of them at most."""
    found: list[Devices] = []
    left = most
    while left and draw(st.booleans() if found else st.just(True)):
        count = draw(st.integers(0 if found else 1, left))
        left -= count
        selectors = draw(
            st.sampled_from([("any",), ("any",), ("any", "big"), ("any", "big"), ("nic",), ("big", "nic")])
        )
        numa = draw(st.sampled_from([(), ((NUMA, "0"),), ((NUMA, "0"),), ((NUMA, "1"),)]))
        found.append(Devices(count, frozenset(selectors), numa, int(draw(st.integers(0, 7)) == 0)))
    if draw(st.integers(0, 7)) == 0:
        found.append(Devices(0, frozenset({draw(st.sampled_from(SELECTORS))}), uncertain=True))
    return tuple(found)


@st.composite
def alternatives(draw: st.DrawFn, name: str = "") -> DeviceAlternative:
    return DeviceAlternative(
        draw(st.sampled_from(SELECTORS)),
        draw(st.sampled_from([1, 1, 2])),
        all=draw(st.integers(0, 7)) == 0,
        admin_access=draw(st.integers(0, 7)) == 0,
        name=name,
    )


@st.composite
def device_claims(draw: st.DrawFn) -> DeviceClaim:
    """Draw claims of every kind."""
    requests = []
    for name in ("r", "s")[: draw(st.sampled_from([1, 1, 1, 2]))]:
        several = draw(st.integers(0, 3)) == 0
        asked = tuple(draw(alternatives(each)) for each in (("first", "second") if several else ("",)))
        requests.append(DeviceRequest(name, asked))
    names = draw(st.sampled_from([frozenset(), frozenset({"r"})]))
    constraints = ((names, NUMA),) if draw(st.integers(0, 2)) == 0 else ()
    return DeviceClaim(tuple(requests), constraints)


@st.composite
def plain_claims(draw: st.DrawFn) -> DeviceClaim:
    """Draw claims of one request each for a number of devices of one kind, or of any: these are planned exactly."""
    return DeviceClaim((DeviceRequest("r", (DeviceAlternative(draw(st.sampled_from(["any", "big"])), draw(COUNTS)),)),))


COUNTS = st.sampled_from([1, 1, 2, 3])


@st.composite
def plain_devices(draw: st.DrawFn) -> tuple[Devices, ...]:
    """Draw devices of which some are big, and all count as any."""
    big, small = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    found = (Devices(big, frozenset({"any", "big"})), Devices(small, frozenset({"any"})))
    return tuple(each for each in found if each.count)


@st.composite
def device_problems(draw: st.DrawFn, *, plain: bool = False) -> Problem:
    """Draw small problems with few pods, few devices and little room; `plain` ones are planned exactly."""
    some_devices = plain_devices() if plain else devices()
    some_claims = plain_claims() if plain else device_claims()
    pod_sets = []
    for number in range(draw(st.integers(1, 3))):
        claims = tuple(draw(some_claims) for _ in range(draw(st.sampled_from([0, 1, 1, 1] if plain else [0, 1, 1, 2]))))
        spec = PodSpec((("cpu", draw(st.integers(1, 3)) * 500),), claims=claims)
        gang = draw(st.sampled_from([None, None, None, "red"]))
        pod_sets.append(
            PodSet(f"ns/p{number}", spec, draw(st.integers(1, 3)), draw(st.sampled_from([0, 0, 9])), gang=gang)
        )
    groups = tuple(
        NodeGroup(
            f"g{number}",
            {"cpu": draw(st.integers(1, 4)) * 1000, "pods": draw(st.integers(1, 5))},
            draw(st.integers(1, 8)) / 8,
            max_size=draw(st.integers(0, 3)),
            weight=draw(st.sampled_from([0, 0, 10])),
            devices=draw(some_devices) if draw(st.integers(0, 4)) else (),
        )
        for number in range(draw(st.integers(1, 3)))
    )
    free = {"cpu": 2000, "pods": 4}
    nodes = (Node("n", free, devices=draw(some_devices)),) if draw(st.booleans()) else ()
    return replace(Problem(tuple(pod_sets), groups), nodes=nodes)


LARGE_NODES = (
    GPUS,
    MIXED,
    PAIRS,
    SOCKETS,
    (*SOCKETS, devices_of("nic", count=2, numa="0"), devices_of("nic", count=2, numa="1")),
    (
        devices_of("gpu", "big", count=2, numa="0"),
        devices_of("gpu", count=2, numa="0"),
        devices_of("gpu", count=4, numa="1"),
    ),
)
USUAL_CLAIMS = (
    (),
    claim(),
    claim(count=2),
    claim(count=4),
    claim("big"),
    claim("big", 2),
    claim("nic"),
    claim(all=True),
    claim(all=True, admin_access=True),
    claim() * 2,
    (*claim(), *claim("nic")),
    first_of(("big", 1), ("gpu", 2)),
    first_of(("gpu", 8), ("gpu", 2)),
    together(NUMA, asks(count=2)),
    together(NUMA, asks(count=4)),
    together(NUMA, asks(), asks("nic")),
    together(PCIE, asks(), asks("nic")),
)


@st.composite
def usual_problems(draw: st.DrawFn) -> Problem:
    """Draw problems with nodes as they are sold, and many pods with claims as they are written, gangs among them."""
    pod_sets = tuple(
        PodSet(
            f"ns/p{number}",
            PodSpec((("cpu", draw(st.integers(1, 4)) * 250),), claims=draw(st.sampled_from(USUAL_CLAIMS))),
            draw(st.integers(1, 8)),
            gang=draw(st.sampled_from([None, None, "red", "blue"])),
        )
        for number in range(draw(st.integers(2, 8)))
    )
    groups = tuple(
        NodeGroup(f"g{number}", {"cpu": 8000, "pods": 30}, 1.0 + number / 4, devices=draw(st.sampled_from(LARGE_NODES)))
        for number in range(draw(st.integers(1, 3)))
    )
    nodes = tuple(
        Node(f"n{number}", {"cpu": 8000, "pods": 30}, devices=draw(st.sampled_from(LARGE_NODES)))
        for number in range(draw(st.integers(0, 2)))
    )
    return Problem(pod_sets, groups, nodes)
