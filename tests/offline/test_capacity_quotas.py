"""CapacityQuotas among the objects of files bound a plan, with what the nodes that stand use of them."""

from __future__ import annotations

import json
from pathlib import Path

from cagrpc.offline.inputs import Inputs, read_problem
from solver import Budget, solve
from solver.model import Operator, Requirement

NODES_THAT_STAND, ALLOWED = 2, 5


def test_a_plan_keeps_within_what_a_quota_leaves(tmp_path: Path) -> None:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "900m"}}}
    spec = {"containers": [container], "nodeSelector": {"pool": "p"}}
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{n}", "namespace": "default"}, "spec": spec}
        for n in range(10)
    ]
    full = {"cpu": "1", "memory": "1Gi", "pods": "0"}
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"n{n}", "labels": {"pool": "p"}},
            "status": {"allocatable": full},
        }
        for n in range(NODES_THAT_STAND)
    ]
    limits = {"selector": {"matchLabels": {"pool": "p"}}, "limits": {"resources": {"nodes": str(ALLOWED)}}}
    quota = {
        "apiVersion": "autoscaling.x-k8s.io/v1beta1",
        "kind": "CapacityQuota",
        "metadata": {"name": "pool-p"},
        "spec": limits,
    }
    dump, pools = tmp_path / "dump.json", tmp_path / "pools.json"
    dump.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [*pods, *nodes, quota]}))
    shape = {"id": "g", "allocatable": {"cpu": 1, "memory": "4Gi", "pods": 10}, "price_usd_per_hour": 0.1}
    pools.write_text(json.dumps([{"name": "p", "node_groups": [{**shape, "labels": {"pool": "p"}, "max_size": 50}]}]))
    read = read_problem(Inputs((dump,), (pools,)))
    (limit,) = read.problem.limits
    assert (limit.name, limit.used) == ("CapacityQuota/pool-p", {"nodes": NODES_THAT_STAND})
    assert limit.selector == (Requirement("pool", Operator.IN, ("p",)),)
    plan = solve(read.problem, Budget(deterministic_seconds=1.0))
    assert sum(nodes.count for nodes in plan.nodes) == ALLOWED - NODES_THAT_STAND
