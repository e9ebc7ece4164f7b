"""Node groups that a backend finds: with the weights, prices and limits of the provisioners that take them in, while
they appear, change and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagrpc.config.check import check_files
from cagrpc.config.load import parse_settings
from cagrpc.errors import InvalidConfiguration
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.model import IncrementSpec, Phase
from cagrpc.server.found_groups import GroupFinder
from cagrpc.services.grpc.template_groups import TemplateGroups
from tests.support.fleet import MemoryJournal
from tests.support.played_provider import PlayedCloud

CONFIGURATION = """\
backend:
  externalgrpc: {{address: "localhost:8086"{more}}}
provisioners:
  - {{name: first, weight: 50, groups: [pool-a], limits: {{nodes: 3}}}}
  - {{name: rest, weight: 10}}
"""


class House:
    """A fleet over a played provider, as the leader puts it together."""

    def __init__(self, text: str = CONFIGURATION.format(more="")) -> None:
        self.cloud = PlayedCloud()
        self.provider = self.cloud.provider
        settings = parse_settings(text, "cagrpc.yaml", Path())
        assert settings.groups == ()
        assert settings.finds_node_groups
        assert not settings.ranks_groups_of_others
        backend = self.cloud.backend()
        templates = TemplateGroups(settings.provisioners, settings.catalogue, settings.prices, settings.price_rule)
        finder = GroupFinder(backend.node_groups, templates, settings.provisioners, ())
        self.fleet = Fleet(
            FleetSettings((), found=finder),
            backend,
            MemoryJournal(self.cloud.shelf),
            clock=self.cloud.clock,
            submit=lambda work: work(),
        )
        self.step()

    def step(self, seconds: float = 0.0) -> None:
        self.cloud.advance(seconds)
        self.fleet.reconcile()


def test_groups_have_the_weights_and_limits_of_who_takes_them_in() -> None:
    house = House()
    groups = {key: state.group for key, state in house.fleet.snapshot.groups.items()}
    assert {key: (each.weight, each.provisioner, each.max_size) for key, each in groups.items()} == {
        "pool-a": (50, "first", 60),
        "pool-b": (10, "rest", 60),
    }
    (limit,) = house.fleet.snapshot.limits
    assert limit.node_groups == frozenset({"pool-a"})
    assert house.fleet.snapshot.shown == ("pool-a", "pool-b")
    assert groups["pool-a"].allocatable["cpu"] == 4000


def test_the_providers_own_price_counts_where_it_has_one() -> None:
    cloud = PlayedCloud()
    cloud.provider.prices = {"pool-a": 0.77}
    backend = cloud.backend()
    backend.list_instances()
    finder = GroupFinder(backend.node_groups, TemplateGroups(), (), ())
    prices = {each.id: each.price_usd_per_hour for each in finder().groups}
    assert prices["pool-a"] == pytest.approx(0.77)
    assert prices["pool-b"] == pytest.approx(4 * 0.033174 + 16 * 0.004446), "by the rule"


def test_a_group_that_appears_is_served_and_one_that_goes_is_served_until_its_nodes_are_gone() -> None:
    house = House()
    increment = house.fleet.apply(IncrementSpec({"pool-b": 2})).id
    house.step()
    house.step(30.0)
    assert house.fleet.increment(increment).phase is Phase.DONE
    house.provider.groups["pool-c"] = type(house.provider.groups["pool-a"])("pool-c")
    gone = house.provider.groups.pop("pool-b")
    house.step(10.0)
    snapshot = house.fleet.snapshot
    assert snapshot.groups["pool-c"].group.weight == 10
    assert snapshot.groups["pool-b"].group.max_size == 2, "it grows no more"
    house.provider.groups["pool-b"] = gone
    house.step(10.0)
    assert house.fleet.snapshot.groups["pool-b"].group.max_size == 60
    del house.provider.groups["pool-b"]
    for _ in range(30):
        house.step(10.0)
    assert house.fleet.snapshot.groups.keys() == {"pool-a", "pool-c"}
    assert "pool-b" not in house.cloud.shelf[0].backend


def test_a_group_without_a_template_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    cloud = PlayedCloud()
    cloud.provider.without_template = {"pool-b"}
    backend = cloud.backend()
    backend.list_instances()
    assert [each.id for each in backend.node_groups()] == ["pool-a"]
    assert "pool-b" in caplog.text
    assert "no template" in caplog.text
    before = backend.node_groups()
    backend.list_instances()
    assert backend.node_groups() is before


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ('{address: "10.0.0.1:8086"}', "without tls"),
        ("{address: nowhere}", "address"),
        ("[]", "expected an address"),
        ('[{address: "localhost:1"}, {address: "localhost:1"}]', "is given twice"),
    ],
)
def test_what_is_wrong_is_told(written: str, problem: str) -> None:
    text = f"backend: {{externalgrpc: {written}}}\nprovisioners: [{{name: all}}]\n"
    with pytest.raises(InvalidConfiguration, match=problem):
        parse_settings(text, "cagrpc.yaml", Path())


def test_node_groups_of_ones_own_do_not_go_with_it() -> None:
    text = """\
backend: {externalgrpc: {address: "localhost:1"}}
provisioners: [{name: a, node_groups: [{id: g, instance_type: m7i.large}]}]
"""
    with pytest.raises(InvalidConfiguration, match="the provider has the node groups"):
        parse_settings(text, "cagrpc.yaml", Path())


def test_a_check_says_whose_the_node_groups_are(tmp_path: Path) -> None:
    path = tmp_path / "cagrpc.yaml"
    path.write_text(CONFIGURATION.format(more=""))
    (found,) = check_files([path])
    assert (found.problems, found.warnings) == ((), ())
    assert found.summary == "2 provisioners for the node groups that the backend finds"
