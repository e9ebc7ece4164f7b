"""Loading configuration files: `Settings` for a server. What commands read without a configuration is in `files`.

All problems of a file and of the files that it names are raised at once. The valid fields are in `schema`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from cagrpc.backends import registry
from cagrpc.backends.plugin import Inventory
from cagrpc.config.groups import Written, expand_all
from cagrpc.config.reading import FileReader
from cagrpc.config.schema import devices, document, provisioners
from cagrpc.config.settings import Settings
from cagrpc.config.yaml_text import parse_documents
from cagrpc.controllers.settings import ConsolidationMode, Drive, ExpanderMode, KueueSettings
from cagrpc.controllers.slack.model import SlackSettings
from cagrpc.durations import duration_text
from cagrpc.errors import InvalidConfiguration, did_you_mean, shown
from cagrpc.fleet.catalogue import Catalogue
from cagrpc.fleet.provisioners import NODEPOOL_LABEL, PROVISIONER_NAME_LABEL
from cagrpc.fleet.visibility import ShownGroups
from cagrpc.problems import path, read_text
from solver.model import UNLIMITED_SIZE, Limit, NodeGroup
from solver.model.capacity import most_nodes

_CONFIGURATION: TypeAdapter[document.Configuration] = TypeAdapter(document.Configuration)


def load_settings(path: Path) -> Settings:
    """Return the settings of a configuration file. Raises InvalidConfiguration with all problems of it and of the files
    that it names."""
    return parse_settings(read_text(path), str(path), path.parent)


def load_default_settings(directory: Path, name: str = "default") -> Settings:
    """Return the settings of an embedded configuration, with paths relative to `directory`."""
    return parse_settings(default_text(name), f"{name}.yaml", directory)


def default_text(name: str = "default") -> str:
    """Return the text of an embedded configuration: `default`, or `demonstration`."""
    return (files("cagrpc") / "data" / f"{name}.yaml").read_text(encoding="utf-8")


def parse_settings(text: str, name: str, directory: Path) -> Settings:
    """Return the settings of a configuration text. `name` stands for the file in syntax errors. Raises
    InvalidConfiguration, as `load_settings`."""
    documents = parse_documents(text, name)
    if len(documents) != 1:
        raise InvalidConfiguration([f"{name}: has {len(documents)} documents, expected one"])
    (raw,) = documents
    reader = FileReader(list(registry.PROBLEMS))
    sections: Mapping[Any, Any] = raw if isinstance(raw, Mapping) else {}
    catalogue = reader.catalogue(sections.get("catalogue"), directory)
    configuration = reader.validated(_CONFIGURATION, raw, "", provisioners.context(catalogue, directory))
    reader.warn_of_old_names()
    if isinstance(raw, Mapping) and not raw.get("provisioners", ()) and not _is_alone(raw):
        reader.problems.append("provisioners: found none, expected at least one, or provider: {enabled: false}")
    written = sections.get("provisioners")
    entries = reader.opened(written if isinstance(written, list) else [], "provisioners", directory, catalogue)
    if configuration is None or catalogue is None or reader.problems:
        raise InvalidConfiguration(reader.problems)
    settings = _settings(configuration, entries, catalogue, directory, reader)
    of_kueue = () if sections.get("kueue") is None or settings.kueue is None else _of_kueue(settings.kueue)
    return replace(settings, warnings=(*settings.warnings, *_of_topology(settings), *of_kueue))


def _of_topology(settings: Settings) -> Iterator[str]:
    """Yield what the cluster-autoscaler cannot be told of topology domains."""
    if settings.drive is Drive.ASSIST and any(each.new_domains is not None for each in settings.groups):
        yield (
            "drive: assist cannot tell the cluster-autoscaler of topology domains that come with the nodes, so nothing"
            " is planned for gangs that require one; drive: plan serves them"
        )


def _of_kueue(settings: KueueSettings) -> Iterator[str]:
    """Yield what a cluster with Kueue has to know of checks by this name."""
    from cagrpc.controllers.admission_checks.reconcile import (  # noqa: PLC0415 - it brings the client
        KUEUES_NAME,
        TOPOLOGY_FROM_NOTHING,
    )

    if settings.controller_name != KUEUES_NAME:
        yield (
            "kueue: of ResourceFlavors with a topology and without nodes Kueue never asks AdmissionChecks of"
            f' controllerName "{settings.controller_name}": it {TOPOLOGY_FROM_NOTHING}'
        )


def _is_alone(raw: Mapping[Any, Any]) -> bool:
    provider = raw.get("provider")
    return isinstance(provider, Mapping) and provider.get("enabled") is False


def _settings(
    written: document.Configuration,
    entries: Sequence[Written],
    catalogue: Catalogue,
    directory: Path,
    reader: FileReader,
) -> Settings:
    cluster_limits = written.limits
    plugin = registry.chosen(written.backend)
    finds = getattr(plugin, "finds_node_groups", False)
    expanded = expand_all(
        entries,
        catalogue,
        reader.problems,
        cluster_limits=cluster_limits,
        gpu_label=written.gpu_label,
        autoscaling=written.autoscaling,
        has_nodes=written.provider.enabled,
        catalogued=not finds,
    )
    for group_id, options in expanded.options.items():
        longest = options.max_node_provision_seconds
        if longest is not None and longest <= written.increment_deadline_seconds:
            found, least = duration_text(written.increment_deadline_seconds), duration_text(longest)
            reader.problems.append(
                f'increment_deadline: found "{found}", expected less than the "{least}" of max_node_provision_time of'
                f' node group "{group_id}", after which CA gives up'
            )
    of_groups = devices.devices_of_groups(written.devices, expanded.groups, catalogue, reader.problems)
    whole = (Limit("cluster", cluster_limits),) if cluster_limits else ()
    limits = (*expanded.limits, *whole)
    most = {group.id: most_nodes(group, limits) for group in expanded.groups}
    for group_id, options in expanded.options.items():
        if options.zero_or_max_node_scaling and most[group_id] == UNLIMITED_SIZE:
            reader.problems.append(
                f'zero_or_max_node_scaling of node group "{group_id}": CA asks for the whole of its maximum at once,'
                " and it has none; give it max_size, or its provisioner limits"
            )
    prices = reader.prices(written.expander.prices, directory, catalogue)
    held = _of_provisioners(written.slack, expanded.groups, reader.problems) if written.slack is not None else None
    if reader.problems:
        raise InvalidConfiguration(reader.problems)
    warnings = [*reader.warnings, *expanded.warnings]
    if expanded.options:
        warnings.append(
            "autoscaling: cluster-autoscaler 1.36.1 sets the start-up time of nodes to 0 for a group with options of "
            "its own (kubernetes/autoscaler#10245); its booting nodes do not count as upcoming"
        )
    startup_taints = {each.name: each.startup_taints for each in expanded.provisioners if each.startup_taints}
    inventory = Inventory(expanded.groups, catalogue, startup_taints)
    backend = plugin.configure(written.backend, written.kubernetes, directory, inventory)
    warnings.extend(f"{path('', location)}: {sentence}" for location, sentence in backend.warnings)
    if written.expander.mode is ExpanderMode.SHADOW and expanded.groups:
        warnings.append(
            "expander.mode: shadow answers options of your own node groups too, whatever gangs and limits say; it is"
            " for a cluster-autoscaler with a cloud provider of its own"
        )
    takes_in = finds or any(each.groups for each in expanded.provisioners)
    if written.provider.enabled and not expanded.groups and not takes_in:
        warnings.append("provisioners: there are no node groups, so nothing can scale up")
    consolidation = written.consolidation
    if consolidation is not None:
        consolidation = replace(consolidation, disruption=expanded.disruption)
        consolidation = None if consolidation.mode is ConsolidationMode.OFF else consolidation
    state, cluster = directory / written.state_directory, written.kubernetes
    serves = cluster is not None and written.provider.enabled
    return Settings(
        provider=written.listen.provider if written.provider.enabled else None,
        expander=written.listen.expander,
        http=written.listen.http,
        tls=written.tls.paths(state),
        http_access=written.http,
        state_directory=state,
        backend=backend.settings,
        catalogue=catalogue,
        groups=expanded.groups,
        limits=limits,
        shown=ShownGroups(
            written.shown_groups, expanded.explicit, frozenset(name for name, nodes in most.items() if not nodes)
        ),
        options=expanded.options,
        devices=of_groups,
        gpu_label=written.gpu_label,
        increment_deadline_seconds=written.increment_deadline_seconds,
        expander_budget_seconds=written.expander_budget_seconds,
        tracing=written.tracing,
        schedulers=frozenset(written.schedulers),
        drive=written.drive,
        cluster=cluster.settings() if cluster is not None else None,
        planner=written.planner,
        requests=written.provisioning_requests if serves and written.provisioning_requests.enabled else None,
        kueue=written.kueue if serves and written.kueue.enabled else None,
        slack=held,
        answers=written.expander.rules(),
        prices=prices,
        price_rule=written.expander.price_rule,
        config_maps=written.expander.config_maps,
        provisioners=expanded.provisioners,
        finds_node_groups=finds and written.provider.enabled,
        consolidation=consolidation,
        warnings=tuple(warnings),
    )


def _of_provisioners(slack: SlackSettings, groups: Sequence[NodeGroup], problems: list[str]) -> SlackSettings:
    """Return the slack with the labels of its targets' provisioners; add unknown ones to `problems`."""
    known = {group.provisioner: group.labels for group in groups}
    targets = []
    for number, target in enumerate(slack.targets):
        labels = known.get(target.provisioner or "", {})
        where = tuple((key, labels[key]) for key in (NODEPOOL_LABEL, PROVISIONER_NAME_LABEL) if key in labels)
        targets.append(replace(target, node_selector=where if target.provisioner is not None else ()))
        if target.provisioner is not None and not where:
            problems.append(
                f"slack.targets[{number}].provisioner: found {shown(target.provisioner)}, which is not a provisioner "
                f"with node groups{did_you_mean(target.provisioner, known)}"
            )
    return replace(slack, targets=tuple(targets))
