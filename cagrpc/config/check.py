"""The reports of `cagrpc config check` and `cagrpc config schema`: files read as a server reads them, with all problems
and a summary; and the JSON schema of the configuration. Printing is the command line's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cagrpc.backends import registry
from cagrpc.config.files import load_provisioners
from cagrpc.config.load import load_settings
from cagrpc.config.schema.document import Configuration
from cagrpc.config.schema.recorded import read_recorded_groups
from cagrpc.config.settings import Settings
from cagrpc.config.yaml_text import read_documents
from cagrpc.errors import InvalidConfiguration
from cagrpc.fleet.catalogue import EPHEMERAL_STORAGE, embedded_catalogue, read_catalogue
from cagrpc.fleet.provisioners import DEFAULT_STORAGE
from solver.model import NodeGroup
from solver.model.quantities import pluralize


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """The report on one file. `problems` is empty where it is valid; then there is a `summary`."""

    path: Path
    kind: str
    """configuration, provisioners, catalogue or node groups; unknown where the file is not readable."""
    summary: str = ""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def check_files(paths: Sequence[Path]) -> tuple[CheckedFile, ...]:
    """Check each file as its kind: CSV is a catalogue; Karpenter documents, ours with a `name`, and lists are
    provisioners; JSON with `groups` is a recording's node groups; anything else is a configuration. Never raises for
    the content of a file."""
    return tuple(_checked(path) for path in paths)


def schema_text() -> str:
    """Return the text of docs/reference/config.schema.json, the JSON schema (draft 2020-12) of a configuration file.
    Raises InvalidConfiguration where a backend of an installed package cannot be used."""
    if registry.PROBLEMS:
        raise InvalidConfiguration(registry.PROBLEMS)
    named = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://cagrpc.io/config.schema.json",
    }
    return json.dumps(named | Configuration.model_json_schema(by_alias=True), indent=2) + "\n"


def _checked(path: Path) -> CheckedFile:
    kind = "unknown"
    try:
        kind = _kind(path)
        return _CHECKS[kind](path)
    except InvalidConfiguration as error:
        return CheckedFile(path, kind, problems=error.problems)


def _kind(path: Path) -> str:
    if path.suffix.lower() == ".csv":
        return "catalogue"
    documents = read_documents(path)
    if documents and isinstance(documents[0], list):
        return "provisioners"
    first = next((document for document in documents if isinstance(document, Mapping)), {})
    if "apiVersion" in first or "kind" in first or ("name" in first and "provisioners" not in first):
        return "provisioners"
    return "node groups" if "groups" in first and "provisioners" not in first else "configuration"


def _catalogue(path: Path) -> CheckedFile:
    catalogue = read_catalogue(path)
    types, offerings = pluralize(len(catalogue.instance_types), "instance type"), len(catalogue.offerings)
    return CheckedFile(path, "catalogue", f"{types}, {pluralize(offerings, 'offering')}")


def _provisioners(path: Path) -> CheckedFile:
    found = load_provisioners([path], embedded_catalogue())
    return CheckedFile(path, "provisioners", _tiers(found.groups), warnings=found.warnings)


def _node_groups(path: Path) -> CheckedFile:
    return CheckedFile(path, "node groups", pluralize(len(read_recorded_groups(path)), "node group"))


def _configuration(path: Path) -> CheckedFile:
    settings = load_settings(path)
    shown = len(settings.shown(settings.groups, {}))
    assumed = sum(group.allocatable.get(EPHEMERAL_STORAGE) == DEFAULT_STORAGE for group in settings.groups)
    storage = f"; 17Gi of ephemeral-storage are assumed for {assumed}, where nothing says it" if assumed else ""
    summary = f"{_tiers(settings.groups)}; {shown} shown to CA{storage}" if settings.provider else "an expander alone"
    if settings.finds_node_groups:
        takers = pluralize(len(settings.provisioners), "provisioner")
        summary = f"{takers} for the node groups that the backend finds"
    return CheckedFile(path, "configuration", summary, warnings=(*settings.warnings, *_missing(settings)))


def _missing(settings: Settings) -> Iterator[str]:
    """Yield which files of certificates are not on this machine; those in a directory are made by `serve`."""
    tls, http = settings.tls, settings.http_access
    named = {"http.certificate": http.certificate, "http.key": http.key}
    if tls is not None and tls.directory is None:
        named |= {"tls.certificate": tls.certificate, "tls.key": tls.key, "tls.client_ca": tls.client_ca}
    for field, file in named.items():
        if file is not None and not file.is_file():
            yield f"{field}: {file} is not there; `cagrpc serve` needs it"


def _tiers(groups: Sequence[NodeGroup]) -> str:
    weights = sorted({group.weight for group in groups}, reverse=True)
    each = (f"weight {weight}: {sum(group.weight == weight for group in groups)}" for weight in weights)
    return pluralize(len(groups), "node group") + (f" ({', '.join(each)})" if weights else "")


_CHECKS = {
    "catalogue": _catalogue,
    "provisioners": _provisioners,
    "node groups": _node_groups,
    "configuration": _configuration,
}
