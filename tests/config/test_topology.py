"""Topology domains in a configuration: the node groups and limits that they become, and what contradicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagrpc.config.load import parse_settings
from cagrpc.config.settings import Settings
from cagrpc.errors import InvalidConfiguration
from solver.model import UNLIMITED_SIZE, NewDomains

_SHAPE = "allocatable: {cpu: 8, memory: 32Gi, pods: 110}, price_usd_per_hour: 1"
_RACKS = "{labels: {rack: r1}, max_nodes: 16}, {labels: {rack: r2}}"
_BLOCK = f"topology: {{domains: [{{labels: {{block: b}}, max_nodes: 20, domains: [{_RACKS}]}}]}}"


def parsed(provisioner: str, group: str = "") -> Settings:
    groups = f"node_groups: [{{id: g, {_SHAPE}, {group or 'labels: {}'}}}, {{id: h, {_SHAPE}}}]"
    return parse_settings(f"provisioners: [{{name: p, {provisioner}, {groups}}}]", "c.yaml", Path())


def test_known_domains_are_node_groups_with_limits_for_all_groups_in_them() -> None:
    found = parsed(_BLOCK, "max_size: 12")
    groups = {each.id: each for each in found.groups}
    assert sorted(groups) == ["g/b/r1", "g/b/r2", "h/b/r1", "h/b/r2"]
    assert groups["g/b/r1"].labels.items() >= {"block": "b", "rack": "r1"}.items()
    assert [groups[name].max_size for name in sorted(groups)] == [12, 12, 16, UNLIMITED_SIZE]
    limits = {each.name: (dict(each.maxima), sorted(each.node_groups or ())) for each in found.limits}
    assert limits == {
        "max_size of g": ({"nodes": 12}, ["g/b/r1", "g/b/r2"]),
        "topology domain b": ({"nodes": 20}, sorted(groups)),
        "topology domain b/r1": ({"nodes": 16}, ["g/b/r1", "h/b/r1"]),
    }


def test_domains_that_come_with_the_nodes_are_said_of_the_group_first() -> None:
    found = parsed(_BLOCK, "topology: {new_domains: {keys: [rack], max_nodes: 4}}")
    groups = {each.id: each for each in found.groups}
    assert groups["g"].new_domains == NewDomains(("rack",), 4)
    assert sorted(groups) == ["g", "h/b/r1", "h/b/r2"]
    assert "rack" not in groups["g"].labels


@pytest.mark.parametrize("form", [_BLOCK, "topology: {new_domains: {keys: [block, rack]}}"])
def test_a_group_says_whether_its_nodes_share_their_fate_and_how_many_spares_come_with_them(form: str) -> None:
    plain = {(each.shared_fate, each.spares) for each in parsed(form).groups}
    found = {(each.shared_fate, each.spares) for each in parsed(f"{form[:-1]}, shared_fate: rack, spares: 2}}").groups}
    assert (plain, found) == ({("", 0)}, {("rack", 2)})


@pytest.mark.parametrize(
    ("provisioner", "group", "problem"),
    [
        ("topology: {}", "", "give either domains or new_domains"),
        (f"{_BLOCK[:-1]}, new_domains: {{keys: [a]}}}}", "", "give either domains or new_domains"),
        ("topology: {domains: [{labels: {rack: a}}, {labels: {rack: a}}]}", "", "found rack=a twice"),
        ("topology: {domains: [{labels: {}}]}", "", "topology.domains[0].labels: "),
        ("topology: {new_domains: {keys: []}}", "", "topology.new_domains.keys: "),
        ("topology: {new_domains: {keys: [rack], max_nodes: 0}}", "", "topology.new_domains.max_nodes: "),
        ("topology: {new_domains: {keys: [rack]}, shared_fate: block}", "", 'found "block", expected one of rack'),
        ("topology: {new_domains: {keys: [rack]}, spares: -1}", "", "topology.spares: "),
        (_BLOCK, "labels: {rack: x}", 'node group "g" has the label rack, and so does its topology; take one out'),
        (_BLOCK, "min_size: 1", 'node group "g" has min_size 1, and nothing says in which domain'),
    ],
)
def test_what_contradicts_is_named(provisioner: str, group: str, problem: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        parsed(provisioner, group)
    assert any(problem in each for each in caught.value.problems), caught.value.problems


def test_with_the_autoscaler_s_drive_it_is_said_what_is_left() -> None:
    (warning,) = parsed("topology: {new_domains: {keys: [rack]}}").warnings
    assert warning.startswith("drive: assist cannot tell the cluster-autoscaler of topology domains")
    assert not parsed(_BLOCK).warnings
