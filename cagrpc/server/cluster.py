"""What connects a process to its cluster, leader or standby: the client, the view, leader election."""

from __future__ import annotations

from cagrpc.api.core import feature_gates
from cagrpc.api.core.nodes import group_labels
from cagrpc.cluster.view.model import ModelSettings
from cagrpc.cluster.view.view import ClusterView
from cagrpc.config.settings import Settings
from cagrpc.controllers.settings import ClusterSettings, Drive, JournalKind
from cagrpc.fleet.provisioners import startup_taints
from cagrpc.kube.client.client import Client
from cagrpc.kube.client.metrics import ApiRequestMetrics
from cagrpc.kube.lease import LeaderElection
from cagrpc.runtime.clock import EpochClock, MonotonicClock, epoch, monotonic

_CONNECTIONS = 64


class ClusterConnection:
    """Client, view and election of one cluster. Building it makes no request."""

    def __init__(
        self,
        access: ClusterSettings,
        settings: Settings,
        client: Client | None = None,
        *,
        clock: MonotonicClock = monotonic,
        now: EpochClock = epoch,
    ) -> None:
        """Connect by the kubeconfig where there is no `client` yet. Raises InvalidInput for an invalid kubeconfig."""
        self.settings = access
        feature_gates.enable(access.feature_gates)
        self.requests = ApiRequestMetrics()
        self.client = client or Client.connect(
            access.kubeconfig, access.context, pool_size=_CONNECTIONS, observe=self.requests.observe
        )
        self.view = ClusterView(
            self.client,
            ModelSettings(
                gang_label=access.gang_label,
                schedulers=settings.schedulers,
                expendable_below=access.expendable_below,
                namespace=access.namespace,
                slack=settings.slack.exclude if settings.slack is not None else None,
                expects=settings.drive is Drive.PLAN and settings.planner.expected_pods,
                progress_deadline_seconds=settings.planner.progress_deadline_seconds,
                devices=settings.devices,
                labels_of_groups={each.id: group_labels(each) for each in settings.groups},
                moving=settings.consolidation.moving if settings.consolidation is not None else None,
                startup_taints=startup_taints(settings.provisioners),
                capacity_quotas=settings.provider is not None,
            ),
            clock=clock,
            now=now,
        )
        elects = settings.provider is not None and access.journal is JournalKind.CLUSTER
        self.election = LeaderElection(self.client, access.namespace) if elects else None
