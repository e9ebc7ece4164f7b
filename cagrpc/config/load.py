"""From configuration files to the values that cagrpc is built from: `Settings` for a server, provisioners for planning.

Files are read, checked whole and turned into node groups, limits and options here; every problem of every file is
raised at once. What a file may say is in `model` and `karpenter`; the composition root takes it from `Settings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from cagrpc.api.autoscaler.options import AutoscalingOptions
from cagrpc.backends import registry
from cagrpc.backends.plugin import BackendSettings, Inventory
from cagrpc.config.groups import Entry, Expanded, Written, expand_all
from cagrpc.config.problems import field_names, path, sentences, shown
from cagrpc.config.schema import cluster, document, karpenter, kubernetes, slack
from cagrpc.config.yaml_text import parse_documents, read_text
from cagrpc.controllers.settings import (
    ClassBehaviour,
    ClusterSettings,
    Drive,
    JournalKind,
    KueueSettings,
    NamespaceSettings,
    PlannerSettings,
    RequestSettings,
    RetryMode,
)
from cagrpc.controllers.slack.model import SlackSettings
from cagrpc.errors import InvalidConfiguration, InvalidInput
from cagrpc.fleet.catalogue import Catalogue, embedded_catalogue, read_catalogue
from cagrpc.fleet.visibility import ShownGroups
from cagrpc.forms import Form
from solver.model import Limit, NodeGroup

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TlsPaths:
    """Where the provider's and the expander's certificate, its key, and the authority of CA's client certificate are.
    Whether they are there is looked at when they are loaded: a server may be about to make them."""

    certificate: Path
    key: Path
    client_ca: Path
    directory: Path | None = None
    """Set where they are in a directory as `cagrpc certs` makes it."""
    client_names: tuple[str, ...] = ()
    """Of the certificates that the provider serves; empty for any of the authority's."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a server is built from."""

    provider: Address
    expander: Address
    http: Address
    tls: TlsPaths | None
    """None only where the configuration says `insecure: true`."""
    state_directory: Path
    backend: BackendSettings
    catalogue: Catalogue
    groups: tuple[NodeGroup, ...]
    """Of all provisioners, in the order in which they are written."""
    limits: tuple[Limit, ...]
    shown: ShownGroups
    options: Mapping[str, AutoscalingOptions]
    """By node group id; only groups for which something is configured."""
    gpu_label: str
    increment_deadline_seconds: float
    expander_budget_seconds: float
    drive: Drive = Drive.ASSIST
    cluster: ClusterSettings | None = None
    """None without access to a cluster."""
    planner: PlannerSettings = field(default_factory=PlannerSettings)
    requests: RequestSettings | None = None
    """None where ProvisioningRequests are not served."""
    kueue: KueueSettings | None = None
    """None where Kueue's AdmissionChecks are not answered."""
    slack: SlackSettings | None = None
    """None where no slack is held."""
    warnings: tuple[str, ...] = ()


def load_settings(path: Path) -> Settings:
    """Reads one configuration file. Raises InvalidConfiguration with every problem of it and of the files it names."""
    return parse_settings(read_text(path), str(path), path.parent)


def load_default_settings(directory: Path) -> Settings:
    """The embedded configuration; its paths are relative to `directory`."""
    return parse_settings(default_text(), "default.yaml", directory)


def default_text() -> str:
    """The embedded configuration as it is written."""
    return (files("cagrpc") / "data" / "default.yaml").read_text(encoding="utf-8")


def parse_settings(text: str, name: str, directory: Path) -> Settings:
    """Like `load_settings`, of text; `name` is what syntax errors call it."""
    documents = parse_documents(text, name)
    if len(documents) != 1:
        raise InvalidConfiguration([f"{name}: has {len(documents)} documents, expected one"])
    (raw,) = documents
    reader = _Reader()
    sections: Mapping[Any, Any] = raw if isinstance(raw, Mapping) else {}
    catalogue = reader.catalogue(sections.get("catalogue"), directory)
    configuration = reader.validated(_CONFIGURATION, raw, "", _context(catalogue, directory))
    written = sections.get("provisioners")
    entries = reader.opened(written if isinstance(written, list) else [], "provisioners", directory, catalogue)
    if configuration is None or catalogue is None or reader.problems:
        raise InvalidConfiguration(reader.problems)
    return _settings(configuration, entries, catalogue, directory, reader)


def load_provisioners(paths: Sequence[Path], catalogue: Catalogue) -> Expanded:
    """Node groups and limits of provisioners in files of their own: Karpenter documents, or ours, one or many in each.
    A file named twice is read once.

    Raises InvalidConfiguration with every problem of every file, names that stand twice included.
    """
    reader = _Reader()
    entries = [entry for path in dict.fromkeys(paths) for entry in reader.file_of_provisioners(path, catalogue)]
    reader.refuse_repeated_names()
    if not entries and not reader.problems:
        reader.problems.append(f"{', '.join(map(str, paths)) or 'no file'}: has no provisioners")
    expanded = expand_all(entries, catalogue, reader.problems)
    if reader.problems:
        raise InvalidConfiguration(reader.problems)
    return replace(expanded, warnings=(*reader.warnings, *expanded.warnings))


def _settings(
    written: document.Configuration,
    entries: Sequence[Written],
    catalogue: Catalogue,
    directory: Path,
    reader: _Reader,
) -> Settings:
    cluster_limits = kubernetes.amounts(written.limits)
    expanded = expand_all(
        entries,
        catalogue,
        reader.problems,
        cluster_limits=cluster_limits,
        gpu_label=written.gpu_label,
        autoscaling=written.autoscaling,
    )
    for group_id, options in expanded.options.items():
        longest = options.max_node_provision_seconds
        if longest is not None and longest <= written.increment_deadline_seconds:
            reader.problems.append(
                f"increment_deadline_seconds: found {written.increment_deadline_seconds:g}, expected less than the "
                f'{longest:g} of max_node_provision_seconds of node group "{group_id}", after which CA gives up'
            )
    held = slack.settings(written.slack, expanded.groups, reader.problems) if written.slack is not None else None
    if reader.problems:
        raise InvalidConfiguration(reader.problems)
    warnings = [*reader.warnings, *expanded.warnings]
    if expanded.options:
        warnings.append(
            "autoscaling: cluster-autoscaler 1.36.1 sets the start-up time of nodes to 0 for a group with options of "
            "its own (kubernetes/autoscaler#10245); its booting nodes do not count as upcoming"
        )
    plugin = registry.chosen(written.backend)
    inventory = Inventory(expanded.groups, catalogue)
    backend = plugin.configure(written.backend, written.kubernetes, directory, inventory)
    warnings.extend(f"{path('', location)}: {sentence}" for location, sentence in backend.warnings)
    if not expanded.groups:
        warnings.append("provisioners: there is not one node group, so nothing can scale up")
    state = directory / written.state_directory
    whole = (Limit("cluster", cluster_limits),) if cluster_limits else ()
    return Settings(
        provider=_address(written.listen.provider),
        expander=_address(written.listen.expander),
        http=_address(written.listen.http),
        tls=_tls_files(written.tls, directory, state),
        state_directory=state,
        backend=backend.settings,
        catalogue=catalogue,
        groups=expanded.groups,
        limits=(*expanded.limits, *whole),
        shown=ShownGroups(written.shown_groups, expanded.explicit),
        options=expanded.options,
        gpu_label=written.gpu_label,
        increment_deadline_seconds=written.increment_deadline_seconds,
        expander_budget_seconds=written.expander_budget_seconds,
        drive=Drive(written.drive),
        cluster=_cluster(written.kubernetes, directory),
        planner=_planner(written.planner),
        requests=_requests(written),
        kueue=_kueue(written),
        slack=held,
        warnings=tuple(warnings),
    )


def _cluster(written: cluster.Kubernetes | None, directory: Path) -> ClusterSettings | None:
    if written is None:
        return None
    return ClusterSettings(
        kubeconfig=None if written.kubeconfig is None else directory / written.kubeconfig,
        context=written.context,
        namespace=written.namespace,
        journal=JournalKind(written.journal),
        gang_label=written.gang_label,
    )


def _planner(written: cluster.Planner) -> PlannerSettings:
    return PlannerSettings(**written.model_dump())


def _requests(written: document.Configuration) -> RequestSettings | None:
    section = written.provisioning_requests
    if written.kubernetes is None or not section.enabled:
        return None
    return RequestSettings(
        booking_seconds=section.booking_seconds,
        keep_seconds=section.keep_seconds,
        upstream_classes=frozenset(map(ClassBehaviour, section.upstream_classes)),
        per_namespace=NamespaceSettings(**section.per_namespace.model_dump()),
    )


def _kueue(written: document.Configuration) -> KueueSettings | None:
    section = written.kueue
    if written.kubernetes is None or not section.enabled:
        return None
    return KueueSettings(section.controller_name, RetryMode(section.retry_mode))


def parse_address(text: str) -> Address:
    """Reads `host:port`, `[::1]:port` too. Raises InvalidInput."""
    try:
        return _address(_ADDRESS.validate_python(text))
    except ValidationError as error:
        raise InvalidInput("; ".join(sentences(error, "address", ()))) from error


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def _tls_files(tls: document.Tls, directory: Path, state: Path) -> TlsPaths | None:
    if tls.insecure:
        return None
    names = tuple(tls.client_names)
    if tls.certificate and tls.key and tls.client_ca:
        own = (directory / tls.certificate, directory / tls.key, directory / tls.client_ca)
        return TlsPaths(*own, client_names=names)
    kept = directory / tls.directory if tls.directory else state / "certs"
    return TlsPaths(kept / "server.crt", kept / "server.key", kept / "ca.crt", kept, names)


@dataclass(slots=True)
class _Reader:
    """Reads files and collects what is wrong with them."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    names: list[tuple[str, str, str]] = field(default_factory=list)
    """(what it names, name, path) of every provisioner and explicit node group, sound or not."""

    def catalogue(self, written: Any, directory: Path) -> Catalogue | None:
        if not isinstance(written, str) or written in ("", "embedded"):
            return embedded_catalogue()  # anything else than text is reported with the other fields
        try:
            return read_catalogue(directory / written)
        except InvalidConfiguration as error:
            self.problems.extend(f"catalogue: {problem}" for problem in error.problems)
            return None

    def validated(self, form: TypeAdapter[_T], raw: Any, place: str, context: Mapping[str, Any]) -> _T | None:
        try:
            return form.validate_python(raw, context=dict(context))
        except ValidationError as error:
            self.problems.extend(sentences(error, place, _VOCABULARY))
            return None

    def opened(self, written: Iterable[Any], place: str, directory: Path, catalogue: Catalogue | None) -> list[Written]:
        """The entries of a configuration with their paths, files opened; problems of the entries themselves are known
        already."""
        entries: list[Written] = []
        for index, raw in enumerate(written):
            path = f"{place}[{index}]"
            if isinstance(raw, Mapping) and isinstance(raw.get("file"), str) and raw["file"]:
                entries.extend(self.file_of_provisioners(directory / raw["file"], catalogue, f"{path}.file: "))
                continue
            self.note_names(path, raw)
            try:
                entry = _ENTRY.validate_python(raw, context=_context(catalogue, directory))
            except ValidationError:
                continue
            if not isinstance(entry, document.ProvisionerFile | document.UnknownDocument):
                entries.append(Written(path, entry, directory))
                self.warn(path, entry)
        self.refuse_repeated_names()
        return entries

    def file_of_provisioners(self, path: Path, catalogue: Catalogue | None, named_by: str = "") -> list[Written]:
        """The file's entries. `named_by` begins what is said of a file that cannot be read: where its name stands."""
        try:
            documents = parse_documents(read_text(path), str(path))
        except InvalidConfiguration as error:
            self.problems.extend(f"{named_by}{problem}" for problem in error.problems)
            return []
        entries: list[Written] = []
        for place, raw in _unlisted(documents, str(path)):
            if isinstance(raw, Mapping) and raw.get("kind") in karpenter.UNREAD_KINDS:
                self.warnings.append(
                    f"{place}: {raw['kind']} is not read; cagrpc takes instance types from its catalogue"
                )
                continue
            self.note_names(place, raw)
            if isinstance(raw, Mapping) and "file" in raw:
                self.problems.append(f"{place}: names another file; give that one instead")
                continue
            entry = self.validated(_ENTRY, raw, place, _context(catalogue, path.parent))
            if entry is None or isinstance(entry, document.ProvisionerFile | document.UnknownDocument):
                continue
            entries.append(Written(place, entry, path.parent))
            self.warn(place, entry)
        if not documents:
            self.problems.append(f"{path}: has no documents; expected provisioners")
        return entries

    def note_names(self, place: str, raw: Any) -> None:
        if not isinstance(raw, Mapping):
            return
        metadata = raw.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else raw.get("name")
        if isinstance(name, str) and name:
            self.names.append(("name", name, place))
        groups = raw.get("node_groups")
        for index, group in enumerate(groups if isinstance(groups, list) else ()):
            if isinstance(group, Mapping) and isinstance(group.get("id"), str):
                self.names.append(("node group id", group["id"], f"{place}.node_groups[{index}]"))

    def refuse_repeated_names(self) -> None:
        first: dict[tuple[str, str], str] = {}
        for what, name, place in self.names:
            before = first.setdefault((what, name), place)
            if before != place:
                self.problems.append(f"{place}: the {what} {shown(name)} is taken by {before}; each needs its own")

    def warn(self, place: str, entry: Entry) -> None:
        if not isinstance(entry, document.ProvisionerForm):
            self.warnings.extend(f"{place}.{warning}" for warning in entry.warnings())


def _context(catalogue: Catalogue | None, directory: Path) -> dict[str, Any]:
    return {document.CATALOGUE: catalogue, document.DIRECTORY: directory}


_CONFIGURATION: TypeAdapter[document.Configuration] = TypeAdapter(document.Configuration)
_ENTRY: TypeAdapter[document.ProvisionerEntry] = TypeAdapter(document.ProvisionerEntry)
_ADDRESS: TypeAdapter[str] = TypeAdapter(document.Address)
_VOCABULARY = field_names(
    *(form for module in (kubernetes, karpenter, cluster, slack, document) for form in vars(module).values()
      if isinstance(form, type) and issubclass(form, Form)),
)  # fmt: skip


def _unlisted(documents: Iterable[Any], place: str) -> list[tuple[str, Any]]:
    """Documents with their paths; lists (`kind: List`, or a plain list of ours) are opened."""
    found: list[tuple[str, Any]] = []
    for index, read in enumerate(documents):
        here = f"{place}[{index}]"
        if isinstance(read, Mapping) and isinstance(read.get("items"), list):
            found.extend((f"{here}.items[{i}]", item) for i, item in enumerate(read["items"]))
        elif isinstance(read, list):
            found.extend((f"{here}[{i}]", item) for i, item in enumerate(read))
        else:
            found.append((here, read))
    return found
