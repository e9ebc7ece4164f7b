"""The cluster view: what planning reads of a cluster, updated object by object; one changed pod costs the same however
many there are. Lists and watches are in `cagrpc.kube` and feed `model`. Single objects are read in `objects` and
`workloads`; their sums are in `classes`, `nodes`, `pods`, `waiting`, `expected` and `slack`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from cagrpc.api.core.gangs import GangCount
from cagrpc.cluster.state import ClusterState
from cagrpc.cluster.view.model import NODES, ClusterModel, ModelSettings
from cagrpc.errors import Unavailable
from cagrpc.fleet.model import PodKey
from cagrpc.kube.client.client import Client
from cagrpc.kube.informer.informers import Informer
from cagrpc.runtime.clock import EpochClock, MonotonicClock, epoch, monotonic
from cagrpc.runtime.controller import Controller, Json
from cagrpc.runtime.health import still_to_come, why_not_synced
from cagrpc.runtime.metrics import AtScrape, gauge, gauges


class ClusterView(ClusterModel, Controller):
    """The model that watches fill from `start` to `stop`, in a standby too. Thread-safe."""

    name = "the cluster view"

    def __init__(
        self,
        client: Client,
        settings: ModelSettings | None = None,
        *,
        clock: MonotonicClock = monotonic,
        now: EpochClock = epoch,
    ) -> None:
        super().__init__(settings or ModelSettings(), clock, now)
        self._server = client.server
        by_path = {
            each.resource.path: each.informer(client, needed=not each.resource.optional) for each in self.followed
        }
        self._informers = tuple(by_path.values())
        self._node_informer = by_path[NODES]

    def informers(self) -> tuple[Informer[Any], ...]:
        """Return what it follows, needed for planning or not."""
        return self._informers

    def collectors(self) -> Iterable[Collector]:
        """Return how many pods wait, and what namespaces use of their shares."""
        return (AtScrape(lambda: _metrics(self)),)

    def status(self) -> Json:
        """Return the API server and how many pods wait, or why that is not known."""
        if self.problem:
            return {"cluster": self.problem}
        arrivals = self.arrivals()
        return {"cluster": self._server, "waiting_pods": arrivals.waiting, "expected_pods": arrivals.expected}

    @property
    def problem(self) -> str | None:
        """Why the cluster's state is incomplete or outdated; None if neither."""
        late = (each.problem for each in self._informers if each.needed)
        return self._unknown() or next(filter(None, late), None)

    def state(self, without: AbstractSet[PodKey] = frozenset(), *, with_bound: bool = False) -> ClusterState:
        """See `ClusterModel.state`. Raises Unavailable before all resources have been listed once; later it is the last
        known state, also while `problem` says why it is outdated."""
        self._check_known()
        return super().state(without, with_bound=with_bound)

    def ready_instances(self) -> AbstractSet[str]:
        """Return provider ids of Ready nodes. Raises Unavailable before nodes have been listed once, and while the
        watch is down: a node may have become Ready unobserved."""
        problem = self._node_informer.problem or why_not_synced(self._node_informer)
        if problem:
            raise Unavailable(problem)
        return super().ready_instances()

    def held_nodes(self) -> Mapping[str, str]:
        """Return provider ids and names of nodes with our start-up taint. Raises Unavailable before all resources have
        been listed once: releasing a node takes knowledge of its pods."""
        self._check_known()
        return super().held_nodes()

    def gang(self, name: str) -> GangCount | None:
        """Return the counts of a gang; None where it has no pods, or not all resources have been listed once."""
        return None if self._unknown() else super().gang(name)

    def _check_known(self) -> None:
        if unknown := self._unknown():
            raise Unavailable(unknown)

    def _unknown(self) -> str:
        # Minimum counts matter from the first plan on: kinds that a cluster may not know are waited for too.
        return still_to_come(self._informers)


def _metrics(model: ClusterModel) -> Iterator[Metric]:
    arrivals, (used, left_out) = model.arrivals(), model.shares()
    yield gauge("cagrpc_waiting_pods", "Pods that wait for nodes.", arrivals.waiting)
    yield gauge("cagrpc_expected_pods", "Pods that workloads still have to create.", arrivals.expected)
    yield gauges(
        "cagrpc_namespace_share_used_ratio",
        "The most that a namespace uses of its share: `constraints`, `device_selectors` or `expected_pods`.",
        ("share",),
        {(share,): ratio for share, ratio in used.items()},
    )
    beyond = "Pods left out because their namespace has used its share up."
    yield gauge("cagrpc_pods_beyond_share", beyond, left_out)
