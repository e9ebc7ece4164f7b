"""The cluster view: what planning reads of a cluster, updated object by object; one changed pod costs the same however
many there are. Lists and watches are in `cagrpc.kube` and feed `model`. Single objects are read in `objects` and
`workloads`; their sums are in `classes`, `nodes`, `pods`, `waiting`, `expected` and `slack`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cagrpc.api.core.gangs import GangCount
from cagrpc.api.provisioning.objects import TemplatePod
from cagrpc.cluster.state import Arrivals, ClusterState, PendingPod, PodRef
from cagrpc.cluster.view.model import NODES, ClusterModel, ModelSettings
from cagrpc.errors import Unavailable
from cagrpc.fleet.model import PodKey
from cagrpc.kube.client.client import Client
from cagrpc.kube.informer.informers import Informer
from cagrpc.runtime.clock import EpochClock, MonotonicClock, epoch, monotonic
from cagrpc.runtime.controller import Controller, Json
from cagrpc.runtime.health import still_to_come, why_not_synced
from solver.slack.model import Placement


class ClusterView(Controller):
    """Watches the cluster from `start` to `stop`, in a standby too. Thread-safe."""

    name = "the cluster view"

    def __init__(
        self,
        client: Client,
        settings: ModelSettings | None = None,
        *,
        clock: MonotonicClock = monotonic,
        now: EpochClock = epoch,
    ) -> None:
        self._server = client.server
        self._model = ClusterModel(settings or ModelSettings(), clock, now)
        by_path = {
            each.resource.path: each.informer(client, needed=not each.resource.optional)
            for each in self._model.followed
        }
        self._informers = tuple(by_path.values())
        self._nodes = by_path[NODES]
        self._expected: Callable[[], frozenset[TemplatePod]] = frozenset

    def expect(self, templates: Callable[[], frozenset[TemplatePod]]) -> None:
        """Read the pods of templates too that do not exist yet and are planned all the same: what their volumes and
        claims come to, and what their constraints select on nodes. `templates` is called by each `state`, on any
        thread."""
        self._expected = templates

    def informers(self) -> tuple[Informer, ...]:
        """Return what it follows, needed for planning or not."""
        return self._informers

    def collectors(self) -> Iterable[Collector]:
        """Return how many pods wait, and what namespaces use of their shares."""
        return (_PodCounts(self), _Shares(self._model))

    def status(self) -> Json:
        """Return the API server and how many pods wait, or why that is not known."""
        if self.problem:
            return {"cluster": self.problem}
        arrivals = self.arrivals()
        return {"cluster": self._server, "waiting_pods": arrivals.waiting, "pods_to_come": arrivals.expected}

    @property
    def problem(self) -> str | None:
        """Why the cluster's state is incomplete or outdated; None if neither."""
        late = (each.problem for each in self._informers if each.needed)
        return self._unknown() or next(filter(None, late), None)

    def arrivals(self) -> Arrivals:
        """Return counts of pending pods, in constant time."""
        return self._model.arrivals()

    def state(self, *, without: AbstractSet[PodKey] = frozenset()) -> ClusterState:
        """Return one consistent state, without these pending pods, which are served already. Raises
        Unavailable before all resources have been listed once; later it is the last known state, also while `problem`
        says why it is outdated."""
        unknown = self._unknown()
        if unknown:
            raise Unavailable(unknown)
        return self._model.state(without, self._expected())

    def state_with_bound_pods(self, *, without: AbstractSet[PodKey] = frozenset()) -> ClusterState:
        """Return the same with who is bound, and why it may not be moved: of a view that remembers it. With 100,000
        pods it takes a second."""
        unknown = self._unknown()
        if unknown:
            raise Unavailable(unknown)
        return self._model.state(without, self._expected(), with_bound=True)

    def ready_instances(self) -> AbstractSet[str]:
        """Return provider ids of Ready nodes. Raises Unavailable before nodes have been listed once, and while the
        watch is down: a node may have become Ready unobserved."""
        problem = self._nodes.problem or why_not_synced(self._nodes)
        if problem:
            raise Unavailable(problem)
        return self._model.ready_instances()

    def lacking_labels(self, wanted: Mapping[str, AbstractSet[str]]) -> AbstractSet[str]:
        """See `cagrpc.fleet.backend.ReadyNodes`."""
        return self._model.lacking_labels(wanted)

    def held_nodes(self) -> Mapping[str, str]:
        """Return provider ids and names of nodes with our start-up taint. Raises Unavailable before all resources have
        been listed once: releasing a node takes knowledge of its pods."""
        unknown = self._unknown()
        if unknown:
            raise Unavailable(unknown)
        return self._model.held_nodes()

    def held_at(self, name: str) -> int:
        """Return the index of our start-up taint in this node's taints; -1 without it."""
        return self._model.held_at(name)

    def is_cordoned(self, name: str) -> bool:
        """Return whether a node is known and takes no further pods."""
        return self._model.is_cordoned(name)

    def in_use(self, name: str) -> bool:
        """Return whether pods are bound to this node that would have to go elsewhere if it went."""
        return self._model.in_use(name)

    def dedicated_nodes(self) -> frozenset[str]:
        """Return the names of nodes whose start-up taint has a value, which the pods planned there tolerate."""
        return self._model.dedicated_nodes()

    def node_names(self) -> Mapping[str, str]:
        """Return provider ids and names of all nodes."""
        return self._model.node_names()

    def pod_of(self, key: PodKey) -> PodRef | None:
        """Return a waiting or expected pod."""
        return self._model.pod_of(key)

    def pause_pods(self) -> Placement:
        """Return where the slack's pause pods are."""
        return self._model.pause_pods()

    def subscribe(
        self, changed: Callable[[str, PendingPod | None], object], bound: Callable[[str, float], object]
    ) -> None:
        """From now on, `changed` of each change of a pending pod: its UID, and None where it is pending no longer;
        `bound` of each that is bound: its UID, and the seconds since it was seen first. What is called must be quick,
        and ask nothing of the view."""
        self._model.subscribe(changed, bound)

    def pending(self, uids: Iterable[str]) -> Mapping[str, PendingPod]:
        """Return those of these pods that are not bound."""
        return self._model.pending(uids)

    def nodes_of(self, uids: Iterable[str]) -> Mapping[str, str]:
        """Return the nodes of those of these pods that are bound."""
        return self._model.nodes_of(uids)

    def nominated_by_us(self) -> Mapping[str, PendingPod]:
        """Return pending pods that we have nominated."""
        return self._model.nominated_by_us()

    def undrainable(self, names: Iterable[str]) -> Mapping[str, str]:
        """Return which of these nodes PodDisruptionBudgets keep from being drained now, each with the reason."""
        return self._model.undrainable(names)

    def gang(self, name: str) -> GangCount | None:
        """Return the counts of a gang; None where it has no pods, or not all resources have been listed once."""
        return None if self._unknown() else self._model.gang(name)

    def _unknown(self) -> str:
        # Minimum counts matter from the first plan on: kinds that a cluster may not know are waited for too.
        return still_to_come(self._informers)


class _Shares(Collector):
    def __init__(self, model: ClusterModel) -> None:
        self._model = model

    def collect(self) -> Iterator[Metric]:
        used, left_out = self._model.shares()
        shares = GaugeMetricFamily(
            "cagrpc_namespace_share_used_ratio",
            "What the namespace that uses most of its share uses of it, by kind of share.",
            labels=["share"],
        )
        for share, ratio in used.items():
            shares.add_metric([share], ratio)
        yield shares
        yield GaugeMetricFamily(
            "cagrpc_pods_beyond_share", "Pods left out because their namespace has used its share up.", value=left_out
        )


class _PodCounts(Collector):
    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        arrivals = self._view.arrivals()
        yield GaugeMetricFamily("cagrpc_waiting_pods", "Pods that wait for nodes.", value=arrivals.waiting)
        yield GaugeMetricFamily(
            "cagrpc_expected_pods", "Pods that workloads still have to create.", value=arrivals.expected
        )
