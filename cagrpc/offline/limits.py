"""What nodes that stand take of the limits of provisioners, where no fleet counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cagrpc.fleet.provisioners import NODEPOOL_LABEL
from solver.model import NODES, Labels, Limit, Node, NodeGroup

_POOLS = (
    NODEPOOL_LABEL,
    "karpenter.sh/provisioner-name",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "kops.k8s.io/instancegroup",
    "cluster.x-k8s.io/deployment-name",
)
"""Labels with the provisioner, NodePool or node pool of a node."""


def pool_of(labels: Labels) -> str:
    """Return the provisioner, NodePool or node pool of a node; empty where it has none."""
    return next((labels[key] for key in _POOLS if labels.get(key)), "")


def with_nodes(limits: Sequence[Limit], groups: Sequence[NodeGroup], nodes: Iterable[Node]) -> tuple[Limit, ...]:
    """Return the limits of these node groups with what nodes that stand take of them, by their provisioners."""
    provisioner_of = {each.id: each.provisioner for each in groups}
    standing = [(pool_of(each.labels), {**each.allocatable, NODES: 1}) for each in nodes]
    found = []
    for limit in limits:
        mine = None if limit.node_groups is None else {provisioner_of.get(each) for each in limit.node_groups}
        used = Counter(limit.used)
        for pool, capacity in standing:
            if mine is None or pool in mine:
                used.update(capacity)
        found.append(replace(limit, used=dict(used)))
    return tuple(found)
