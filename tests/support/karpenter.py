"""Karpenter played on the API server in memory, as its core behaves (tests/controlplane has the real one): it launches
NodeClaims and registers them, deletes those that the cloud has no capacity for, with an Event, and lets deleted ones
go. Time is a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cagrpc.api.encoding.json_documents import epoch_seconds, timestamp
from cagrpc.backends.karpenter.backend import KarpenterBackend
from cagrpc.backends.karpenter.claims import EVENTS, NODE_CLAIMS, claim, reason
from cagrpc.backends.karpenter.plugin import KarpenterSettings, NodeClass, Parameters, node_pool
from cagrpc.backends.karpenter.pools import NODE_POOLS, NodePools, NodePoolState
from cagrpc.backends.karpenter.pools import node_pool as decoded_pool
from cagrpc.backends.karpenter.store import ClaimStore
from cagrpc.cluster.markers import FLEET_LABEL
from cagrpc.cluster.view.objects import Named
from cagrpc.errors import InvalidInput
from cagrpc.kube.client.envelopes import Encoding, identity
from cagrpc.kube.informer.informers import InformerStore
from solver.model import NodeGroup
from tests.support.api_server import ApiServer, Document
from tests.support.fleet import FakeClock

GROUP = "karpenter.example.com"
CLASSES = f"/apis/{GROUP}/v1/examplenodeclasses"
KINDS = (NODE_CLAIMS, NODE_POOLS, EVENTS, CLASSES, "/apis")
FINALIZER = "karpenter.sh/termination"
SHORT = "InsufficientInstanceCapacity: there is none of it left"
LAUNCHED_AFTER_SECONDS = 0.4
REGISTERED_AFTER_SECONDS = 1.0
GONE_AFTER_SECONDS = 1.0


def settings_for(*groups: NodeGroup, fleet: str = "cagrpc") -> KarpenterSettings:
    parameters = Parameters(NodeClass(GROUP, "ExampleNodeClass", "default"))
    return KarpenterSettings(
        fleet=fleet,
        parameters={group.id: parameters for group in groups},
        node_pools=frozenset(node_pool(group) for group in groups),
    )


class PlayedKarpenter:
    """`answer` says of an instance type why it cannot be launched; None launches it. Watches are `behind_seconds`
    late."""

    def __init__(self, api: ApiServer, clock: FakeClock) -> None:
        self.api = api
        self.clock = clock
        self.running = True
        self.launching = True
        self.behind_seconds = 0.0
        self._held_since: float | None = None
        self.answer: Callable[[str], str | None] = lambda _: None
        """The reason of its Event, a colon, and the message; an empty text deletes without an Event."""
        self.fails: dict[str, tuple[str, str]] = {}
        """Reason and message of the condition Launched, by instance type, for launches that are tried again."""
        self.node_class(ready=True)
        self._watches: list[tuple[ClaimStore, NodePools, str]] = []
        self._seen: dict[str, float] = {}

    def node_class(self, *, ready: bool) -> None:
        """The one that settings name."""
        self.api.put(f"/apis/{GROUP}", {"preferredVersion": {"groupVersion": f"{GROUP}/v1"}})
        condition = {"type": "Ready", "status": str(ready), "message": "no subnets"}
        self.api.put(f"{CLASSES}/default", {"status": {"conditions": [condition]}})

    # ---- the backend over it

    def open(self, settings: KarpenterSettings) -> KarpenterBackend:
        """As a new process: its watches begin with what there is. Those of earlier ones get nothing more."""
        client = self.api.client()
        claims = ClaimStore(client, settings.fleet, settings.unavailable_offerings_seconds, self.clock)
        pools = NodePools(client, settings.node_pools)
        self._stamp()
        self.api.unseen.clear()
        self._watches = [(claims, pools, settings.fleet)]
        self.relist()
        return KarpenterBackend(client, settings, claims, pools)

    def relist(self) -> None:
        """As after a watch that expired."""
        for claims, pools, fleet in self._watches:
            ours = [found for found in self._objects(NODE_CLAIMS) if _is_of(fleet, found)]
            claims.replaced(_decoded(claim, ours))
            claims.reasons.replaced(_decoded(reason, self._objects(EVENTS)))
            pools.followed.replaced([_pool(found) for found in self._objects(NODE_POOLS)])
            for each in (claims, pools):
                _synced(each)

    def deliver(self) -> None:
        """What watches have not shown yet."""
        self._stamp()
        if self.api.unseen and self._held_since is None:
            self._held_since = self.clock()
        if self._held_since is None or self.clock() < self._held_since + self.behind_seconds:
            return
        self._held_since = None
        while self.api.unseen:
            path, document, there = self.api.unseen.popleft()
            kind = path.rpartition("/")[0]
            for claims, pools, fleet in self._watches:
                if kind == NODE_CLAIMS and _is_of(fleet, document):
                    _show(claims, claim, document, there=there)
                elif kind == EVENTS:
                    _show(claims.reasons, reason, document, there=there)
                elif kind == NODE_POOLS:
                    _show(pools.followed, _pool, document, there=there)

    # ---- Karpenter

    def advance(self, seconds: float) -> None:
        self.deliver()
        self.clock.advance(seconds)
        if self.running:
            for path in [path for path in self.api.objects if path.startswith(f"{NODE_CLAIMS}/")]:
                self._reconcile(path, self.api.objects[path])
        self.deliver()

    def machines(self) -> frozenset[str]:
        return frozenset(
            found["metadata"]["name"]
            for found in self._objects(NODE_CLAIMS)
            if "deletionTimestamp" not in found["metadata"]
        )

    def _reconcile(self, path: str, found: Document) -> None:
        metadata, status = found["metadata"], found.get("status", {})
        if "deletionTimestamp" in metadata:
            since = self._seen.setdefault(f"{metadata['uid']} deleted", self.clock())
            if self.clock() >= since + GONE_AFTER_SECONDS:
                self.api.remove(path)
            return
        if FINALIZER not in metadata.get("finalizers", ()):
            self.api.edit(path, finalizers=[FINALIZER])
        age = self.clock() - self._seen.setdefault(metadata["uid"], self.clock())
        if not status.get("providerID"):
            if age >= LAUNCHED_AFTER_SECONDS and self.launching:
                self._launch(path, found)
        elif age >= REGISTERED_AFTER_SECONDS:
            self._status(path, Registered="True")

    def _launch(self, path: str, found: Document) -> None:
        name = found["metadata"]["name"]
        values = {each["key"]: each["values"] for each in found["spec"]["requirements"]}
        (instance_type,) = values["node.kubernetes.io/instance-type"]
        said = self.answer(instance_type)
        if said is not None:
            if said:
                self.event(name, *said.split(": ", 1))
            self.api.remove(path)
        elif instance_type in self.fails:
            why, message = self.fails[instance_type]
            launched = {"type": "Launched", "status": "Unknown", "reason": why, "message": message}
            self.api.change(path, status={"conditions": [launched]})
        else:
            self.api.change(path, status={"providerID": f"example:///{found['metadata']['uid']}"})
            self._status(path, Launched="True")

    def event(self, name: str, why: str, message: str) -> None:
        about = {"kind": "NodeClaim", "name": name}
        text = f"NodeClaim {name} event: {message}"
        self.api.put(f"{EVENTS}/{name}.{why.lower()}", {"involvedObject": about, "reason": why, "message": text})

    def _status(self, path: str, **conditions: str) -> None:
        known = {each["type"]: each for each in self.api.objects[path].get("status", {}).get("conditions", ())}
        if any(known.get(kind, {}).get("status") != value for kind, value in conditions.items()):
            new = [{"type": kind, "status": value, "reason": kind} for kind, value in conditions.items()]
            self.api.change(path, status={"conditions": new})

    def _stamp(self) -> None:
        for path, found in list(self.api.objects.items()):
            if path.startswith(f"{NODE_CLAIMS}/") and "creationTimestamp" not in found["metadata"]:
                self.api.edit(path, creationTimestamp=timestamp(self.clock()))
                self._seen[found["metadata"]["uid"]] = self.clock()

    def _objects(self, kind: str) -> list[Document]:
        return [found for path, found in self.api.objects.items() if path.rpartition("/")[0] == kind]


def claim_body(name: str, token: str, *, fleet: str = "cagrpc", group: str = "a", at: float = 0.0) -> Document:
    """A NodeClaim as somebody else might make it."""
    return {
        "metadata": {
            "name": name,
            "labels": {FLEET_LABEL: fleet},
            "annotations": {"cagrpc.io/token": token, "cagrpc.io/node-group": group},
            "creationTimestamp": timestamp(at),
        },
        "spec": {"requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [group]}]},
    }


def _is_of(fleet: str, found: Document) -> bool:
    return bool(found["metadata"].get("labels", {}).get(FLEET_LABEL) == fleet)


def _decoded(decode: Callable[[Any], Any], documents: list[Document]) -> list[Any]:
    found = []
    for document in sorted(documents, key=lambda each: epoch_seconds(each["metadata"].get("creationTimestamp"))):
        try:
            found.append(decode(document))
        except InvalidInput:  # an informer leaves it out
            continue
    return found


def _pool(document: Document) -> Named[NodePoolState]:
    return Named(document["metadata"]["name"], decoded_pool(document))


def _show(sink: Any, decode: Callable[[Any], Any], document: Document, *, there: bool) -> None:
    found = _decoded(decode, [document]) if there else []
    if found:
        sink.applied(found[0])
    else:  # also where it cannot be decoded
        sink.deleted(identity(Encoding.JSON, document))


def _synced(store: InformerStore) -> None:
    for each in store.informers:
        each.synced = True
