"""A world whose nodes stand from the start, with pods on them, and what scale-down has decided of each.

with Standing() as world:
    world.stand({"high": [1000], "low": [1000, 500]})  # nodes of the groups of these names, with pods of so many mCPU
    assert world.review() == {"high": no_room(100), "low": MAY_GO}

A cluster-autoscaler drives, no pod is bound but where a test says so, and scale-down takes its steps in `review` and
`go_on` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.cluster.markers import SCALE_DOWN_DISABLED
from cagrpc.cluster.markers import SCALE_DOWN_DISABLED_BY_US as OURS
from cagrpc.controllers.settings import Drive
from cagrpc.fleet.model import IncrementSpec
from solver.model import HOSTNAME, NodeGroup, Operator, PodAffinityTerm, PodSelector, PodSpec, Requirement
from tests.support.cluster import NAMESPACE, NODES
from tests.support.fleet import group
from tests.support.requests import RequestWorld

SCALE_DOWN = "what the autoscaler may scale down"
REVIEW_SECONDS = 20.0
MAY_GO = ""
IN_USE = "in use: above the scale-down utilization threshold"
IN_FLIGHT = "an increment in flight counts on it"
AT_MINIMUM = "its node group would be below its minimum size"
NOT_YET = "not evaluated yet"
ENOUGH = "enough other nodes may go first"
CONSOLIDATED = "cagrpc consolidates: it takes nodes away by itself"
BOOKED = "booked for ProvisioningRequest"
BUDGET = "PodDisruptionBudget ns/web allows no disruption now"
TO_BE_DELETED = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
ZONE = "topology.kubernetes.io/zone"

Pods = Mapping[str, Sequence[int | PodSpec]]
"""The pods on each node, by the name of the node: that of its group, and a number where there are several."""


def no_room(weight: int) -> str:
    return f"its pods, or pods that wait, are not sure to find room elsewhere on nodes of weight {weight} or above"


def no_room_with_slack(weight: int) -> str:
    return f"its pods, or the slack on it, are not sure to find room elsewhere on nodes of weight {weight} or above"


def tier(name: str, weight: int, price: float = 1.0, **more: Any) -> NodeGroup:
    labels = {"tier": name, **more.pop("labels", {})}
    resources = more.pop("resources", {})
    found = group(name, weight=weight, price=price, labels=labels, max_size=999, **more)
    return replace(found, allocatable={**found.allocatable, **resources})


def of_app(app: str, *namespaces: str) -> PodSelector:
    return PodSelector((Requirement("app", Operator.IN, (app,)),), namespaces or (NAMESPACE,))


def pod(cpu: int, app: str = "", **more: Any) -> PodSpec:
    return PodSpec((("cpu", cpu),), namespace=NAMESPACE, labels=(("app", app),) if app else (), **more)


def apart(cpu: int, key: str = HOSTNAME) -> PodSpec:
    """Return a pod of a database, that keeps away from others of it."""
    return pod(cpu, "db", pod_anti_affinity=(PodAffinityTerm(key, of_app("db")),))


TIERS = (tier("high", 100, 3.0), tier("middle", 50, 2.0), tier("low", 10))


class Standing(RequestWorld):
    def __init__(self, *groups: NodeGroup, **more: Any) -> None:
        super().__init__(*(groups or TIERS), **{"drive": Drive.ASSIST, **more})
        self.backend.set_behaviours({"*": Behaviour(boot_seconds=0.0, delete_seconds=60.0)})
        self.cluster.scheduling = False
        self.idle |= {SCALE_DOWN, "the slack", "the planner loop"}
        self.names: dict[str, str] = {}
        """Of the Nodes, by those of the test."""
        self.specs: dict[str, PodSpec] = {}
        """Of pods, as they were asked for, by UID."""
        self._written: list[str] = []
        self.api.before = self._before
        self._during: Callable[[str], object] = lambda _: None

    # ---- what there is

    def stand(self, nodes: Pods) -> None:
        """Let these nodes stand, beside those that do."""
        wanted: dict[str, list[str]] = {}
        for name in nodes:
            wanted.setdefault(name.partition(" ")[0], []).append(name)
        before = self.cluster.nodes().keys()
        missing = {of: len(names) - self.fleet.snapshot.groups[of].target_size for of, names in wanted.items()}
        if any(each > 0 for each in missing.values()):
            self.fleet.apply(IncrementSpec({of: count for of, count in missing.items() if count > 0}))
        self.run(9.0, 3.0)
        while any(each.phase.in_flight for each in self.increments()):
            self.run(1.0)
        for of, names in wanted.items():
            there = sorted(each for each in self.cluster.nodes().keys() - before if each.startswith(f"{of}-"))
            self.names.update(zip(names, there, strict=True))
        for name, pods in nodes.items():
            self.bind(name, *pods)

    def order(self, name: str, *, released: bool) -> None:
        """Let a node come that an increment in flight counts on."""
        before = self.cluster.nodes().keys()
        self.idle |= {"releasing nodes", "placing pods"}
        self.fleet.apply(IncrementSpec({name.partition(" ")[0]: 1}))
        self.run(9.0, 3.0)
        (self.names[name],) = self.cluster.nodes().keys() - before
        if released:
            self.change(name, spec={"taints": []})

    def bind(self, name: str, *pods: int | PodSpec) -> list[str]:
        """Create pods on a node, or that are bound nowhere, and return their UIDs."""
        made = []
        for each in pods:
            spec = pod(each) if isinstance(each, int) else each
            node = self.names[name] if name else ""
            (uid,) = self.cluster.add(spec=spec, namespace=spec.namespace or NAMESPACE, node=node)
            self.specs[uid] = spec
            made.append(uid)
        return made

    def change(self, name: str, **parts: Any) -> None:
        self.api.change(f"{NODES}/{self.names[name]}", **parts)

    def annotate(self, name: str, **annotations: str | None) -> None:
        """Set the annotations `theirs` and `ours`, or any other."""
        keys = {"theirs": SCALE_DOWN_DISABLED, "ours": OURS}
        self.change(name, metadata={"annotations": {keys.get(of, of): value for of, value in annotations.items()}})

    def during(self, request: str, do: Callable[[], object]) -> None:
        """Do something before each request of scale-down of this method is done."""
        self._during = lambda each: do() if each == request else None

    def _before(self, request: str) -> None:
        method, _, path = request.partition(" ")
        if self.stepping == SCALE_DOWN and path.startswith(NODES):
            if method == "PATCH":
                self._written.append(path.rpartition("/")[2])
            self._during(method)

    def mark(self, name: str, why: str) -> None:
        """Annotate a node as scale-down does."""
        self.annotate(name, theirs="true", ours=why)

    def leave(self, name: str) -> None:
        """Let the cluster-autoscaler begin to drain a node."""
        self.change(name, spec={"taints": [TO_BE_DELETED]})

    def book(self, name: str, count: int, request: str = "train") -> None:
        """Let a ProvisioningRequest book room for so many pods of 1000 mCPU on a node."""
        self.template(request, nodeSelector={HOSTNAME: self.names[name]})
        self.request(request, (request, count))
        self.run(3.0)
        assert self.is_true(request, "Provisioned"), self.document(request)

    def pods_on(self, name: str) -> list[str]:
        """Return the UIDs of the pods of a node."""
        return [uid for uid in self.cluster.pods() if self.cluster.node_of(uid) == self.names[name]]

    def take(self, name: str) -> list[PodSpec]:
        """Take a node away as the cluster-autoscaler does, and return what ran there."""
        node = self.cluster.nodes()[self.names[name]]
        here = self.pods_on(name)
        self.cluster.delete(*here)
        identity = node["spec"]["providerID"]
        self.fleet.delete_instances(self.fleet.snapshot.group_of_instance[identity], [identity])
        self.cluster.vanish(self.names.pop(name))
        return [self.specs[uid] for uid in here]

    def restart(self) -> None:
        """Begin another process, and let all else find out what there is: scale-down waits for that."""
        super().restart()
        self.step()

    # ---- what has been decided

    def review(self) -> dict[str, str]:
        """Let all nodes be reviewed, and return `decided`."""
        self.clock.advance(REVIEW_SECONDS)
        return self.go_on()

    def go_on(self) -> dict[str, str]:
        """Let scale-down take a step, a review or not, and return `decided`."""
        self.idle.discard(SCALE_DOWN)
        self.step()
        self.idle.add(SCALE_DOWN)
        return self.decided()

    def decided(self) -> dict[str, str]:
        """Return the reasons of nodes that have to stay, and `MAY_GO` of others; somebody else's annotation is told as
        it is."""
        found = {}
        nodes = self.cluster.nodes()
        for name, real in self.names.items():
            annotations = nodes[real]["metadata"].get("annotations", {}) if real in nodes else {}
            disabled, why = annotations.get(SCALE_DOWN_DISABLED), annotations.get(OURS)
            assert why is None or disabled == "true"
            found[name] = why or (f"theirs: {disabled}" if disabled else MAY_GO)
        return found

    def may_go(self) -> list[str]:
        return [name for name, why in self.decided().items() if why == MAY_GO]

    @property
    def summary(self) -> Mapping[str, int]:
        """Return scale-down's member of `/status`."""
        found: Mapping[str, int] = self.status()["scale_down"]
        return found

    def written(self) -> list[str]:
        """Return the nodes whose annotations were written, in their order."""
        back = {real: name for name, real in self.names.items()}
        return [back[each] for each in self._written]


Do = Callable[[Standing], object]
