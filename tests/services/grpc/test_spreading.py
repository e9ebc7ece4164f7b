"""Scale-ups are shared out over node groups that are as good as each other, and over no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from cagrpc.controllers.autoscaler import GroupSize
from cagrpc.controllers.settings import AnswerRules
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.group_ids import GroupPattern
from cagrpc.services.grpc.template_groups import TemplateGroups
from tests.services.grpc.test_template_groups import LARGE, M7, PODS, ConfigMaps, answered, ask, ids, taking
from tests.support.fleet import FleetHarness, group
from tests.support.grpc_servers import House, asking, option, pod

EVEN = ((GroupPattern(""), 1.0),)
POOLS = {f"spot-{name}": M7 for name in "abc"}


def house(shares: tuple[tuple[GroupPattern, float], ...] = EVEN, sizes: Mapping[str, GroupSize] | None = None) -> House:
    preferred = taking("preferred", 9, groups=ids("preferred"))
    templates = TemplateGroups([preferred], embedded_catalogue(), config_maps=ConfigMaps(sizes))  # type: ignore[arg-type]
    options = {"templates": templates, "answers": AnswerRules(shares=shares)}
    return House(FleetHarness(groups=[group("ours")]), expander_options=options)


def chosen(found: House, times: int, templates: Mapping[str, bytes] = POOLS) -> Counter[str]:
    """How often each group was, of requests that come within milliseconds, as with --salvo-scale-up."""
    return Counter(name for _ in range(times) for name in answered(found, ask(templates)))


def test_pools_that_are_as_good_have_their_turns() -> None:
    with house() as found:
        assert chosen(found, 9) == {"spot-a": 3, "spot-b": 3, "spot-c": 3}
        (*_, decision) = found.decisions.latest()
    assert "(shared out over 3 node groups that are as good)" in decision.reason


def test_by_default_the_first_has_all() -> None:
    with house(()) as found:
        assert chosen(found, 3) == {"spot-a": 3}


def test_shares_are_by_id_and_who_has_none_gets_nothing() -> None:
    with house(((GroupPattern("-a$"), 2.0), (GroupPattern("-b$"), 1.0))) as found:
        assert chosen(found, 9) == {"spot-a": 6, "spot-b": 3}


@pytest.mark.parametrize(
    ("other", "template"),
    [pytest.param("dear", LARGE, id="a dearer one"), pytest.param("preferred", M7, id="one of another weight")],
)
def test_nothing_goes_to(other: str, template: bytes) -> None:
    with house() as found:
        got = chosen(found, 4, {**POOLS, other: template})
    assert (got[other], len(got)) in ((0, 3), (4, 1))


def test_nothing_goes_to_one_that_serves_fewer_pods() -> None:
    request = asking(option("spot-a", 1, PODS), option("spot-b", 1, PODS[:2]))
    request.nodeBytesMap.update(POOLS)
    with house() as found:
        assert [answered(found, request) for _ in range(3)] == [["spot-a"]] * 3


def test_what_groups_have_counts_where_it_is_known() -> None:
    sizes = {"spot-a": GroupSize(5, 99), "spot-b": GroupSize(3, 99), "spot-c": GroupSize(4, 99)}
    with house(sizes=sizes) as found:
        assert [answered(found, ask(POOLS)) for _ in range(4)] == [["spot-b"], ["spot-b"], ["spot-c"], ["spot-a"]]


def test_what_was_chosen_long_ago_counts_less() -> None:
    two = dict.fromkeys(("spot-a", "spot-b"), M7)
    with house() as found:
        assert answered(found, ask({"spot-b": M7}, count=8)) == ["spot-b"]
        assert chosen(found, 4, two) == {"spot-a": 4}
        found.harness.clock.advance(100 * 3600.0)
        later = [pod("later")]
        request = asking(*(option(name, 1, later) for name in two))
        request.nodeBytesMap.update(two)
        got = Counter(name for _ in range(4) for name in answered(found, request))
    assert got == {"spot-a": 2, "spot-b": 2}
