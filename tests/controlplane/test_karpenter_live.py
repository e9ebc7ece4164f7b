"""`cagrpc serve` over Karpenter's core: increments over several node groups are whole or gone, whatever is short, ends,
restarts or thaws meanwhile, and no NodeClaim is left over."""

from __future__ import annotations

from tests.controlplane.test_live_gangs import EACH, bound, create_gang
from tests.support.controlplane.karpenter import ZONES, Karpenter, configure, group, offering
from tests.support.controlplane.live import Live

A = group("a")
B = group("b", zone=ZONES[1], labels={"role": "b"})
C = group("c", zone=ZONES[2], labels={"role": "b"})


def test_a_gang_is_had_and_where_a_group_is_short_another_one_serves(karpenter: Karpenter, live: Live) -> None:
    karpenter.stock({offering(zone=ZONES[1]): 1})
    configure(live, [{"name": "all", "node_groups": [A, B, {**C, "price_usd_per_hour": 0.9}]}])
    live.start()
    create_gang(live)
    live.wait_for_running(2 * EACH)
    live.wait_until_settled()
    assert live.pools() == {"a": EACH, "c": EACH}
    assert live.phases() == ["rolled-back", "done"]
    assert [each["short_groups"] for each in live.increments()] == [["b"], []]
    assert len(karpenter.claims()) == 2 * EACH
    assert len(bound(live)) == 2 * EACH
