"""A first configuration, from what a cluster shows: text in which each line says where it comes from, and what was not
found or is for somebody to decide is a comment. It is pure; `discovery` looks.

Whatever was found, the text is a configuration that a server accepts and starts with, and that changes nothing. Beside
a cluster-autoscaler with a cloud provider of its own it is the expander in shadow mode. Over Karpenter's NodePools it
is the provider, which orders nothing before somebody asks; as long as they are not frozen a server would refuse to
start, so it is the expander alone and the rest is a comment. Where there is neither it is the expander alone, too:
nothing is known of nodes that could be ordered, and a fleet that is made up would become Nodes of a real cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
from cagrpc.api.core.schedulers import DEFAULT_SCHEDULER, EXPENDABLE_BELOW
from cagrpc.backends.plugin import ImportedSections
from cagrpc.config.load import parse_settings
from cagrpc.controllers.autoscaler import GroupPriorities, GroupSize
from cagrpc.controllers.settings import AutoscalerConfigMapSettings
from cagrpc.durations import duration_seconds, duration_text
from cagrpc.errors import InvalidConfiguration
from cagrpc.offline.annotated_yaml import ITEM, SourcedSetting, annotated, commented, one_line
from solver.model.quantities import pluralize, some_of

EXTERNAL_GRPC = "externalgrpc"
KUEUE, REQUESTS, OURS, CLUSTER_API = "kueue.x-k8s.io", "autoscaling.x-k8s.io", "cagrpc.io", "cluster.x-k8s.io"
API_GROUPS = (OURS, REQUESTS, KUEUE, CLUSTER_API)
"""Groups of the API that say what a cluster has."""
_DEFAULT_PROVISION_SECONDS = 900.0
"""CA's own --max-node-provision-time."""
_DEFAULT_DEADLINE_SECONDS = 600.0
_OF_PROVISION_TIME = 2 / 3
_BYPASSED, _CUTOFF = "bypassed-scheduler-names", "expendable-pods-priority-cutoff"
_MOST_NAMED = 8
"""Instance types, groups and others that a comment names."""
_ORDER = ("provider", "drive", "kubernetes", "schedulers", "backend", "provisioners", "expander", "increment_deadline")
_HEADINGS: Mapping[str, str] = {
    "kubernetes": "how the cluster is reached",
    "schedulers": "whose pods are planned",
    "backend": "where nodes come from",
    "karpenter": "from Karpenter's NodeClaims",
    "provisioners": "weights, requirements, taints and limits of nodes",
    "expander": "what the cluster-autoscaler is answered",
    "config_maps": "what the cluster-autoscaler says itself",
}
_DEFAULT_CONFIG_MAPS = AutoscalerConfigMapSettings()
_Together = tuple[SourcedSetting, ...]
"""Settings that are of use only with one another."""
_Block = Sequence[str]
"""Lines of comments."""


@dataclass(frozen=True, slots=True)
class AutoscalerWorkload:
    """A cluster-autoscaler that runs in the cluster."""

    name: str
    """With its kind and namespace."""
    version: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Those of its flags that can be read, without dashes."""

    @property
    def has_own_provider(self) -> bool:
        """Return whether its nodes are of another cloud provider than an external one."""
        return self.flags.get("cloud-provider") != EXTERNAL_GRPC


@dataclass(frozen=True, slots=True)
class AutoscalerObjects:
    """The cluster-autoscaler's ConfigMaps: their names, and what they say; None where it cannot be read."""

    namespace: str = _DEFAULT_CONFIG_MAPS.namespace
    status_name: str = _DEFAULT_CONFIG_MAPS.status_config_map
    sizes: Mapping[str, GroupSize] | None = None
    priorities: GroupPriorities | None = None

    @property
    def status(self) -> str:
        return f"ConfigMap {self.namespace}/{self.status_name}"

    @property
    def priority(self) -> str:
        return f"ConfigMap {self.namespace}/{_DEFAULT_CONFIG_MAPS.priority_config_map}"


@dataclass(frozen=True, slots=True)
class NodeLabelCounts:
    """How many nodes have which labels."""

    count: int = 0
    clouds: Mapping[str, int] = field(default_factory=dict)
    capacity_types: Mapping[str, int] = field(default_factory=dict)
    spot_labels: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By the key and the value that say that a node is a spot node."""
    priced: Mapping[str, int] = field(default_factory=dict)
    """By the instance types of which the embedded catalogue has a price."""
    unpriced: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodCounts:
    """How many pods have which schedulers and gangs."""

    count: int = 0
    schedulers: Mapping[str, int] = field(default_factory=dict)
    gang_labels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterFindings:
    """All that was found in a cluster. What is None could not be read, and `unread` says why."""

    server: str
    kubeconfig: Path
    context: str = ""
    version: str = ""
    """Kubernetes' own."""
    autoscalers: Sequence[AutoscalerWorkload] = ()
    objects: AutoscalerObjects = field(default_factory=AutoscalerObjects)
    node_pools: ImportedSections | None = None
    nodes: NodeLabelCounts | None = None
    pods: PodCounts | None = None
    api_groups: frozenset[str] = frozenset()
    unread: Sequence[str] = ()
    """What was not found, or could not be read, and why, each a sentence."""


def first_configuration(found: ClusterFindings) -> str:
    """Return the text, which `parse_settings` accepts."""
    own = next((each for each in found.autoscalers if each.has_own_provider), None)
    ours = next((each for each in found.autoscalers if not each.has_own_provider), None)
    if own is not None:
        seen = _says(own, "cloud-provider", "no --cloud-provider that can be read")
        return _text(found, _expander(found, seen, own), own)
    refused: Sequence[_Block] = ()
    if found.node_pools is not None:
        pools = _accepted(_access(found, journal=True), list(_provisioners(found.node_pools)))
        refused = pools.below
        if any(setting.path[0] == "provisioners" for setting in pools.settings):
            whole = _accepted(pools.settings, [*_refinements(found), *_deadline(ours)])
            draft = _Draft(whole.settings, [*refused, *whole.below])
            return _text(found, _not_yet(draft, found.node_pools) if found.node_pools.preconditions else draft, ours)
    if ours is None and found.objects.sizes:
        seen = f"{found.objects.status}: a cluster-autoscaler that runs out of sight, in a managed control plane say"
        return _text(found, _expander(found, seen, None, refused), None)
    asks = f"{ours.name} asks for one, but" if ours is not None else "no cluster-autoscaler was found, and"
    return _text(found, _expander(found, f"{asks} no NodePool that nodes could be made of", ours, refused), ours)


@dataclass(frozen=True, slots=True)
class _Draft:
    """Settings that are accepted together, and what follows below them as a comment."""

    settings: Sequence[SourcedSetting]
    below: Sequence[_Block] = ()


def _accepted(essential: Sequence[SourcedSetting], optional: Sequence[_Together]) -> _Draft:
    """Return the settings with all optional ones that a server accepts, and the others as comments."""
    whole = [*essential, *(setting for each in optional for setting in each)]
    if not _problem(whole):
        return _Draft(whole)
    kept = list(essential)
    below: list[_Block] = []
    for each in optional:
        if why := _problem([*kept, *each]):
            below.append([*_comments([f"Left out, as a server would refuse it: {why}"]), *commented(_lines(each))])
        else:
            kept += each
    return _Draft(kept, below)


def _problem(settings: Iterable[SourcedSetting]) -> str:
    """Return the first reason for which a server refuses them; empty where it accepts them."""
    try:
        parse_settings("\n".join(_lines(settings)), "it", Path())
    except InvalidConfiguration as error:
        return error.problems[0]
    return ""


def _lines(settings: Iterable[SourcedSetting]) -> list[str]:
    return annotated(sorted(settings, key=lambda each: _ORDER.index(each.path[0])), _HEADINGS)


def _access(found: ClusterFindings, *, journal: bool) -> list[SourcedSetting]:
    """Return how the cluster is reached, and where the `journal` of a provider is."""
    where = "--kubeconfig; in a pod of the cluster write in_cluster: true instead"
    settings = [SourcedSetting(("kubernetes", "kubeconfig"), str(found.kubeconfig), where)]
    if found.context:
        settings.append(SourcedSetting(("kubernetes", "context"), found.context, "--context"))
    if journal:
        kept, why = ("cluster", "is there") if OURS in found.api_groups else ("sqlite", "is not there")
        source = f"the API group {OURS} (deploy/crds.yaml) {why}"
        settings.append(SourcedSetting(("kubernetes", "journal"), kept, source))
    return settings


def _expander(
    found: ClusterFindings, why_alone: str, autoscaler: AutoscalerWorkload | None, below: Sequence[_Block] = ()
) -> _Draft:
    """Return the expander alone, which decides nothing yet."""
    essential = [
        SourcedSetting(("provider",), {"enabled": False}, why_alone),
        *_access(found, journal=False),
        SourcedSetting(("expander", "mode"), "shadow", "a start without risk: every option is answered, unchanged"),
    ]
    optional = [*_refinements(found), *_config_maps(found, autoscaler)]
    if autoscaler is not None and autoscaler.version:
        source = f"{autoscaler.name}: the tag of its image"
        optional.append((SourcedSetting(("expander", "autoscaler_version"), autoscaler.version, source),))
    draft = _accepted(essential, optional)
    return _Draft(draft.settings, [*draft.below, *below, *_examples(found, essential)])


def _not_yet(draft: _Draft, pools: ImportedSections) -> _Draft:
    """Return the expander alone, with the provider as a comment below it until the NodePools are frozen."""
    why = "NodePools are not frozen: a server with their nodes would not start"
    alone = SourcedSetting(("provider",), {"enabled": False}, why)
    later = {"backend", "provisioners", "increment_deadline"}
    told = [
        "Nodes by Karpenter, once its NodePools are frozen (docs/guides/karpenter.md); a server does not start before.",
        "Then remove the line `provider` above, and `# ` from the lines below these:",
        *(f"- {each}" for each in pools.preconditions),
    ]
    waits = commented(_lines(each for each in draft.settings if each.path[0] in later))
    settings = [alone, *(each for each in draft.settings if each.path[0] not in later | {"drive"})]
    return _Draft(settings, [[*_comments(told), "#", *waits], *draft.below])


def _refinements(found: ClusterFindings) -> Iterator[_Together]:
    """Yield what pods say of their schedulers and gangs, and the cluster-autoscaler of other schedulers and of those
    that are expendable."""
    pods = found.pods or PodCounts()
    seen = {name: f"{pluralize(count, 'pod')}: spec.schedulerName" for name, count in pods.schedulers.items()}
    bypassed = {
        name.strip(): f"{autoscaler.name}: --{_BYPASSED}"
        for autoscaler in found.autoscalers
        for name in autoscaler.flags.get(_BYPASSED, "").split(",")
        if name.strip()
    }
    others = {name: source for name, source in {**bypassed, **seen}.items() if name != DEFAULT_SCHEDULER}
    if others:
        default = pluralize(pods.schedulers.get(DEFAULT_SCHEDULER, 0), "pod")
        yield (SourcedSetting(("schedulers", ITEM), DEFAULT_SCHEDULER, f"the default; {default}"),)
    for name, source in sorted(others.items()):
        yield (SourcedSetting(("schedulers", ITEM), name, source),)
    if pods.gang_labels and DEFAULT_GANG_LABEL not in pods.gang_labels:
        label, count = max(pods.gang_labels.items(), key=lambda each: (each[1], each[0]))
        yield (SourcedSetting(("kubernetes", "gang_label"), label, f"{pluralize(count, 'pod')}: metadata.labels"),)
    for autoscaler in found.autoscalers:
        cutoff = autoscaler.flags.get(_CUTOFF, str(EXPENDABLE_BELOW))
        if cutoff != str(EXPENDABLE_BELOW) and re.fullmatch(r"-?[0-9]+", cutoff):
            path = ("kubernetes", "expendable_pods_priority_cutoff")
            yield (SourcedSetting(path, int(cutoff), f"{autoscaler.name}: --{_CUTOFF}"),)
            return


def _config_maps(found: ClusterFindings, autoscaler: AutoscalerWorkload | None) -> Iterator[_Together]:
    """Yield where the cluster-autoscaler's ConfigMaps are; nothing where neither is there."""
    objects = found.objects
    seen = []
    if objects.sizes is not None:
        seen.append(f"{objects.status}: {pluralize(len(objects.sizes), 'node group')}")
    if objects.priorities is not None:
        seen.append(f"{objects.priority}: {pluralize(len(objects.priorities.patterns), 'priority', 'priorities')}")
    if not seen:
        return
    section = ("expander", "config_maps")
    names = (
        ("namespace", objects.namespace, _DEFAULT_CONFIG_MAPS.namespace, "namespace"),
        ("status_config_map", objects.status_name, _DEFAULT_CONFIG_MAPS.status_config_map, "status-config-map-name"),
    )
    others = [
        SourcedSetting((*section, name), value, _says(autoscaler, flag, "; ".join(seen)))
        for name, value, default, flag in names
        if value != default
    ]
    yield tuple(others) if others else (SourcedSetting(section, {}, "; ".join(seen)),)


def _deadline(autoscaler: AutoscalerWorkload | None) -> Iterator[_Together]:
    """Yield a deadline of increments within the time after which the cluster-autoscaler gives up."""
    flags = autoscaler.flags if autoscaler is not None else {}
    seconds = duration_seconds(flags.get("max-node-provision-time", "")) or _DEFAULT_PROVISION_SECONDS
    if seconds <= _DEFAULT_DEADLINE_SECONDS:
        text = duration_text(max(1, int(seconds * _OF_PROVISION_TIME)))
        source = f"{_says(autoscaler, 'max-node-provision-time', '')}, which has to be longer"
        yield (SourcedSetting(("increment_deadline",), text, source),)


def _provisioners(sections: ImportedSections) -> Iterator[_Together]:
    """Yield each NodePool, with the parameters of its NodeClaims."""
    drive = SourcedSetting(
        ("drive",),
        "assist",
        "the default: nothing is ordered unless a cluster-autoscaler asks; with plan cagrpc orders",
    )
    backend = sections.sections.get("backend", {})
    for provisioner in sections.sections.get("provisioners", ()):
        name, source = str(provisioner.get("name")), f"NodePool {provisioner.get('name')}"
        parameters = [
            SourcedSetting(("backend", kind, "provisioners", name), section["provisioners"][name], source)
            for kind, section in backend.items()
            if name in section.get("provisioners", {})
        ]
        yield (drive, *parameters, SourcedSetting(("provisioners", ITEM), provisioner, source))


def _examples(found: ClusterFindings, essential: Sequence[SourcedSetting]) -> Iterator[_Block]:
    """Yield weights and prices of another provider's node groups, as comments that are settings without `# `."""
    nodes = found.nodes or NodeLabelCounts()
    examples = list(_of_priorities(found.objects)) or list(_of_spot(nodes))
    weights = _accepted(essential, [(each,) for each in examples]).settings[len(essential) :]
    if weights:
        said = "Weights, the higher one strictly before the lower one. To have them, remove `# ` from what follows:"
        yield [*_comments([said]), *commented(_lines(weights))]
    if nodes.unpriced:
        columns = "a table of yours: instance_type,usd_per_hour[,zone,capacity_type]"
        prices = SourcedSetting(("expander", "prices"), "prices.csv", f"{columns}; {_named(nodes.unpriced)}")
        said = "Types without a price are priced by their CPU, memory and GPUs, unless `expander` has a table:"
        yield [*_comments([said]), *commented(_lines([prices])[1:])]


def _of_priorities(objects: AutoscalerObjects) -> Iterator[SourcedSetting]:
    for weight, patterns in objects.priorities.patterns if objects.priorities is not None else ():
        if patterns:
            groups = [each.source for each in patterns]
            yield SourcedSetting(
                ("provisioners", ITEM),
                {"name": f"priority-{weight}", "weight": weight, "groups": groups},
                f"{objects.priority}, which config_maps reads already",
            )


def _of_spot(nodes: NodeLabelCounts) -> Iterator[SourcedSetting]:
    for (key, value), count in sorted(nodes.spot_labels.items(), key=lambda each: -each[1])[:1]:
        yield SourcedSetting(
            ("provisioners", ITEM),
            {"name": "spot", "weight": 50, "requirements": [{"key": key, "operator": "In", "values": [value]}]},
            f"the label {key}={value} of {pluralize(count, 'node')}",
        )


def _text(found: ClusterFindings, draft: _Draft, autoscaler: AutoscalerWorkload | None) -> str:
    title = [
        f"A first configuration for {found.server}, by `cagrpc config init`. Each line says where it comes from.",
        "`cagrpc config check FILE` checks it, `cagrpc serve --config FILE` serves it; docs/guides/connect.md goes on.",
    ]
    parts = [_comments(title), _lines(draft.settings), *draft.below, _comments(_shown(found, autoscaler))]
    if found.unread:
        parts.append(_comments(["What was not found, or could not be read:", *(f"- {each}" for each in found.unread)]))
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _comments(sentences: Iterable[str]) -> list[str]:
    return [f"# {one_line(each)}" for each in sentences]


def _shown(found: ClusterFindings, chosen: AutoscalerWorkload | None) -> Iterator[str]:
    """Yield what the cluster shows that is no setting, or for somebody to decide."""
    yield "What the cluster shows:"
    if found.version:
        yield f"- Kubernetes {found.version}"
    for each in found.autoscalers:
        flags = " ".join(f"--{name}={value}" for name, value in each.flags.items())
        beside = "" if each is chosen else "; another one"
        yield f"- {each.name}: version {each.version or 'unknown'}; {flags or 'no flag that is read'}{beside}"
    if chosen is not None:
        yield from _advice(chosen)
    sizes = found.objects.sizes
    if sizes:
        groups = {name: each.target_size for name, each in sizes.items()}
        nodes, of = pluralize(sum(groups.values()), "node"), pluralize(len(sizes), "node group")
        yield f"- {found.objects.status}: {nodes} in {of}: {_named(groups)}"
        backed_off = [name for name, each in sizes.items() if each.back_off]
        if backed_off:
            yield f"- {found.objects.status}: backed off from {', '.join(backed_off[:_MOST_NAMED])}"
    yield from _of_node_pools(found)
    if found.nodes is not None:
        yield from _of_nodes(found.nodes)
    if found.pods is not None:
        gangs = f"; in gangs, by label: {_named(found.pods.gang_labels)}" if found.pods.gang_labels else ""
        yield f"- {pluralize(found.pods.count, 'pod')}, by scheduler: {_named(found.pods.schedulers)}{gangs}"
    yield from _of_groups(found.api_groups)


def _advice(autoscaler: AutoscalerWorkload) -> Iterator[str]:
    """Yield what the flags of a cluster-autoscaler mean beside cagrpc."""
    flags = autoscaler.flags
    expanders = flags.get("expander", "").split(",")
    if autoscaler.has_own_provider and "grpc" not in expanders:
        today = flags.get("expander") or "EXPANDERS_OF_TODAY"
        yield f"- {autoscaler.name} asks cagrpc with --expander=grpc,{today} and the flags that `cagrpc serve` prints"
    if not autoscaler.has_own_provider and expanders != ["grpc"]:
        yield f"- {autoscaler.name}: --expander has to be grpc alone, else another one goes round the planner"
    if flags.get("balance-similar-node-groups", "false") != "false":
        yield (
            f"- {autoscaler.name}: with --balance-similar-node-groups it splits what was chosen; `expander: {{spread:"
            " even}` shares out instead"
        )


def _of_node_pools(found: ClusterFindings) -> Iterator[str]:
    if found.node_pools is None:
        return
    names = [str(each.get("name")) for each in found.node_pools.sections.get("provisioners", ())]
    yield f"- {pluralize(len(names), 'NodePool')}: {some_of(names, _MOST_NAMED)}"
    if any(each.has_own_provider for each in found.autoscalers):
        yield "- NodePools stay Karpenter's; `cagrpc config import node-pools` writes them as provisioners"
    else:
        yield from (f"- {each}" for each in found.node_pools.warnings)


def _of_nodes(nodes: NodeLabelCounts) -> Iterator[str]:
    yield f"- {pluralize(nodes.count, 'node')}, by labels of {_named(nodes.clouds) or 'no cloud'}"
    if nodes.capacity_types:
        yield f"- nodes by capacity type: {_named(nodes.capacity_types)}"
    if nodes.priced:
        yield f"- instance types with a price in the embedded catalogue: {_named(nodes.priced)}"
    if nodes.unpriced:
        yield f"- instance types without one: {_named(nodes.unpriced)}"


def _of_groups(groups: frozenset[str]) -> Iterator[str]:
    if KUEUE in groups:
        yield f"- the API group {KUEUE}: with a provider cagrpc answers AdmissionChecks (docs/guides/kueue.md)"
    if REQUESTS in groups:
        yield f"- the API group {REQUESTS}: with a provider cagrpc serves ProvisioningRequests"
    if CLUSTER_API in groups:
        yield f"- the API group {CLUSTER_API}: `cagrpc config import machine-deployments` reads what it scales"


def _says(autoscaler: AutoscalerWorkload | None, flag: str, otherwise: str) -> str:
    """Return where a flag was read, or else `otherwise`."""
    if autoscaler is None:
        return otherwise
    value = autoscaler.flags.get(flag)
    return f"{autoscaler.name}: {otherwise}" if value is None else f"{autoscaler.name}: --{flag}={value}"


def _named(counts: Mapping[str, int]) -> str:
    """Return names with their counts, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return some_of([f"{name} ({count})" for name, count in ordered], _MOST_NAMED)
