"""`cagrpc serve` over Karpenter's core: increments over several node groups are whole or gone, whatever is short, ends,
restarts or thaws meanwhile, and no NodeClaim is left over. Every other test of it has no Karpenter but a player of one
(tests/backends/karpenter)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cagrpc import errors
from cagrpc.backends.karpenter.backend import open_backend
from cagrpc.backends.karpenter.plugin import KarpenterSettings
from cagrpc.backends.plugin import BackendContext
from cagrpc.cluster.markers import TOKEN
from cagrpc.errors import InvalidConfiguration
from cagrpc.kube.client.client import Client
from cagrpc.runtime.clock import epoch
from tests.controlplane.test_live_gangs import EACH, bound, create_gang
from tests.support.controlplane.deployed import apply, documents, remove
from tests.support.controlplane.karpenter import (
    CLAIMS,
    NODE_CLASS,
    POOLS,
    ZONES,
    Karpenter,
    configure,
    frozen_fields,
    group,
    offering,
)
from tests.support.controlplane.live import Live
from tests.support.controlplane.processes import wait_for

A = group("a")
B = group("b", zone=ZONES[1], labels={"role": "b"})
C = group("c", zone=ZONES[2], labels={"role": "b"}, price_usd_per_hour=0.9)
POOL = "all"
TO_DONE = (
    "before order",
    "after claim#2",
    "after nominate#3",  # which comes before the commit that it is ready, or after it
    "after release#3",
    "before commit done",
)
TO_ROLLED_BACK = ("before commit rolling-back", "before delete", "after delete")
DEPLOYED = ("rbac.yaml", "rbac-karpenter.yaml", "policies.yaml")


@pytest.fixture
def deployed(karpenter: Karpenter) -> Iterator[Path]:
    """The kubeconfig of the ServiceAccount that the Deployment runs as, with the rights for Karpenter and no others."""
    admin = karpenter.cluster.admin
    for name in DEPLOYED:
        for document in documents(name):
            apply(admin, document)
    yield karpenter.cluster.plane.kubeconfig_of_service_account("cagrpc", "cagrpc")
    remove(admin, *DEPLOYED)


def claims_by_token(karpenter: Karpenter) -> dict[str, str]:
    return {each["metadata"]["annotations"][TOKEN]: each["metadata"]["name"] for each in karpenter.claims()}


def assert_whole(karpenter: Karpenter, live: Live, **pools: int) -> None:
    """Every pod of the gang runs, on these nodes and no others; each has one NodeClaim, launched once."""
    live.wait_for_running(2 * EACH)
    live.wait_until_settled()
    live.wait_for(lambda: live.pools() == pools, f"the nodes that are left are {pools}")
    assert len(claims_by_token(karpenter)) == len(karpenter.claims()) == 2 * EACH
    launched = [each["claim"] for each in karpenter.launches() if not each["error"]]
    assert len(launched) == len(set(launched))


def test_where_a_group_is_short_another_one_serves(karpenter: Karpenter, deployed: Path, live: Live) -> None:
    karpenter.stock({offering(zone=ZONES[1]): 1})
    configure(live, [{"name": POOL, "node_groups": [A, B, C]}], kubeconfig=deployed)
    live.start()
    create_gang(live)
    assert_whole(karpenter, live, a=EACH, c=EACH)
    assert live.phases() == ["rolled-back", "done"]
    failed = live.increments()[0]
    assert failed["short_groups"] == ["b"]
    assert "InsufficientInstanceCapacity" in failed["message"]
    (shortage,) = live.rounds()[-1]["shortages"]
    assert shortage["offering"] == offering(zone=ZONES[1])
    assert shortage["until_seconds"] >= karpenter.launches()[-1]["at"] + 120  # Karpenter's three minutes, not our own
    short_at = min(each["at"] for each in karpenter.launches() if each["error"])
    next_at = min(each["at"] for each in karpenter.launches() if each["offering"] == offering(zone=ZONES[2]))
    ordered_at = live.increments()[1]["created_at_seconds"]
    print(
        f"from the cloud's answer to the next choice: ordered after {ordered_at - short_at:.2f} s,"
        f" launched by Karpenter after {next_at - short_at:.2f} s"
    )


def test_what_its_rights_do_not_allow(karpenter: Karpenter, deployed: Path) -> None:
    client = Client.connect(deployed)
    own = {"name": "cagrpc-1", "labels": {"cagrpc.io/fleet": "cagrpc"}, "annotations": {TOKEN: "t"}}
    spec = {"nodeClassRef": NODE_CLASS, "requirements": []}
    body = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "spec": spec}
    refused: dict[str, dict[str, Any]] = {
        "its own NodeClaims only": {**own, "name": "another"},
        "by a finalizer": {**own, "finalizers": ["example.com/ours"]},
    }
    another = {**body, "metadata": refused["its own NodeClaims only"]}
    wait_for(lambda: _is_denied(client, karpenter, another), "the policies hold")
    for why, metadata in refused.items():
        with pytest.raises(errors.CagrpcError, match=why):
            client.create(CLAIMS, {**body, "metadata": metadata})
    karpenter.cluster.admin.create(CLAIMS, {**body, "metadata": {"name": "others"}})
    with pytest.raises(errors.CagrpcError, match="its own NodeClaims only"):
        client.delete(f"{CLAIMS}/others")
    karpenter.node_pool("others")
    with pytest.raises(errors.Unavailable, match="the right to patch nodepools"):
        client.patch(f"{POOLS}/others", {"spec": {"weight": 1}})
    client.close()


def _is_denied(client: Client, karpenter: Karpenter, body: dict[str, Any]) -> bool:
    try:
        client.create(CLAIMS, body)
    except errors.CagrpcError as refused:  # perhaps only since one of an earlier try is not gone yet
        return "ValidatingAdmissionPolicy" in str(refused)
    karpenter.cluster.admin.delete(f"{CLAIMS}/{body['metadata']['name']}")
    return False


@pytest.mark.parametrize("ends", ["done", "rolled back"])
def test_killed_on_the_way(karpenter: Karpenter, live: Live, ends: str) -> None:
    if ends == "rolled back":
        karpenter.stock({offering(zone=ZONES[1]): 1})
    configure(live, [{"name": POOL, "node_groups": [A, B]}])
    create_gang(live)
    for step in TO_DONE if ends == "done" else TO_ROLLED_BACK:
        live.serve_until(step)
    live.start()
    if ends == "done":
        assert_whole(karpenter, live, a=EACH, b=EACH)
        assert len(karpenter.launches()) == 2 * EACH
    else:
        live.wait_until_settled()
        live.wait_for(lambda: not karpenter.claims() and not karpenter.nodes(), "nothing of it is left")
        assert set(bound(live).values()) == {None}
        assert live.phases() == ["rolled-back"]


def test_karpenter_is_restarted_in_the_middle(karpenter: Karpenter, live: Live) -> None:
    configure(live, [{"name": POOL, "node_groups": [A, B]}])
    live.start()
    create_gang(live)
    live.wait_for(karpenter.claims, "the first NodeClaim is created")
    karpenter.stop()
    live.wait_for(lambda: len(karpenter.claims()) == 2 * EACH, "they are created without it too")
    karpenter.start()
    live.node_selector += ",karpenter.sh/registered=true"  # kwok launches again what it had launched unnoticed
    live.wait_for_running(2 * EACH)
    live.wait_until_settled()
    assert live.pools() == {"a": EACH, "b": EACH}
    assert len(claims_by_token(karpenter)) == len(karpenter.claims()) == 2 * EACH
    assert live.phases() == ["done"]


def test_a_node_pool_thaws_in_the_middle(karpenter: Karpenter, live: Live) -> None:
    karpenter.node_pool(POOL, frozen=True)
    configure(live, [{"name": POOL, "node_groups": [A, B]}])
    live.start()
    create_gang(live)
    live.wait_for(karpenter.claims, "the first NodeClaim is created")
    karpenter.change_pool(POOL, {"limits": None, "disruption": {"consolidateAfter": "0s", "budgets": None}})
    assert_whole(karpenter, live, a=EACH, b=EACH)
    live.wait_for(lambda: live.serving.get("/status")["backend_problem"], "it says that the NodePool is not frozen")
    live.cluster.create_deployment("more", 2, {"cpu": "3"}, nodeSelector={"pool": "a"})
    live.wait_for(lambda: "rolled-back" in live.phases(), "nothing more is ordered")
    refused = next(each for each in live.increments() if each["phase"] == "rolled-back")
    assert f'NodePool "{POOL}": spec.limits' in refused["message"]
    assert len(karpenter.claims()) == 2 * EACH
    karpenter.change_pool(POOL, frozen_fields())
    live.wait_for(lambda: not live.serving.get("/status")["backend_problem"], "it says no more")


def test_a_live_node_pool_is_refused_at_the_start(karpenter: Karpenter, tmp_path: Path) -> None:
    client = Client.connect(karpenter.cluster.plane.kubeconfig())
    settings = KarpenterSettings(node_pools=frozenset({"alive", "frozen"}))
    context = BackendContext(tmp_path, epoch, client)
    karpenter.node_pool("alive")
    karpenter.node_pool("frozen", frozen=True)
    karpenter.node_pool("others")
    with pytest.raises(InvalidConfiguration) as refused:
        open_backend(settings, context)
    assert [":".join(line.split(":")[:2]) for line in refused.value.problems[:-1]] == [
        'NodePool "alive": spec.limits',
        'NodePool "alive": spec.disruption.budgets',
        'NodePool "alive": spec.disruption.consolidateAfter',
    ]
    karpenter.change_pool("alive", frozen_fields())
    opened = open_backend(settings, context)

    def listed() -> bool:
        assert opened.backend.problem is None
        try:
            return opened.backend.list_instances().instances == ()
        except errors.Unavailable:
            return False

    wait_for(listed, "its NodeClaims are listed")
    opened.close()
    client.close()


def test_of_others_no_node_claim_is_listed_or_taken(karpenter: Karpenter, live: Live) -> None:
    """Not even one with our label, or a copy of ours."""
    configure(live, [{"name": POOL, "node_groups": [A, B]}])
    live.start()
    create_gang(live)
    assert_whole(karpenter, live, a=EACH, b=EACH)
    ours = karpenter.claims()[0]
    kept = {key: ours["metadata"][key] for key in ("labels", "annotations")}
    copy = {"apiVersion": ours["apiVersion"], "kind": ours["kind"], "spec": ours["spec"]}
    live.cluster.admin.create(CLAIMS, {**copy, "metadata": {"name": "a-copy", **kept}})
    live.wait_for(lambda: len(karpenter.nodes()) == 2 * EACH + 1, "Karpenter launches the copy")
    live.wait_for(lambda: live.serving.get("/status")["ready"], "it serves on")
    sizes = {each["id"]: each for each in live.increments()}
    assert len(sizes) == 1
    assert len(karpenter.claims()) == 2 * EACH + 1
