"""The list of all backends: those that come with cagrpc, each with its folder and an entry here and named by no other
module, and those of installed packages, which may be of this repository as well (`plugins/`): by their entry points in
the group `cagrpc.backends`. Each names an instance of `BackendPlugin`, whose one field in the section `backend` has the
entry point's name. One that cannot be used is left out with a problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, create_model, model_validator

from cagrpc.backends.cluster_api.plugin import ClusterApiPlugin
from cagrpc.backends.externalgrpc.plugin import ExternalGrpcPlugin
from cagrpc.backends.karpenter.plugin import KarpenterPlugin
from cagrpc.backends.plugin import BackendPlugin, CatalogueSource, SectionSource
from cagrpc.backends.simulated.plugin import SimulatedPlugin
from cagrpc.errors import InvalidConfiguration, InvalidInput, did_you_mean, shown
from cagrpc.forms import Form

GROUP = "cagrpc.backends"
"""The group of entry points."""


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plug-ins that can be used, and a problem for each package whose plug-in cannot be."""

    usable: tuple[BackendPlugin, ...]
    problems: tuple[str, ...] = ()


def with_packages(own: Sequence[BackendPlugin], points: Iterable[EntryPoint]) -> Plugins:
    """Return our own plug-ins with those of packages, in the order of their names. Of two with one name, or with one
    field, the first is taken."""
    usable, problems = list(own), []
    takers = {name: "cagrpc" for plugin in own for name in _names(plugin)}
    for point in sorted(points, key=lambda each: (each.name, _package(each))):
        plugin, wrong = _loaded(point)
        if plugin is not None:
            taken = sorted(_names(plugin) & takers.keys())
            wrong = "; ".join(f'the name "{name}" is taken by {takers[name]}' for name in taken)
        if plugin is None or wrong:
            problems.append(
                f'backend "{point.name}" of package {_package(point)} ({point.value}): {wrong}; correct or uninstall it'
            )
            continue
        takers.update(dict.fromkeys(_names(plugin), f"package {_package(point)}"))
        usable.append(plugin)
    return Plugins(tuple(usable), tuple(problems))


def _loaded(point: EntryPoint) -> tuple[BackendPlugin | None, str]:
    """Return the plug-in, or what is wrong with it."""
    try:
        found = point.load()
    except Exception as error:  # noqa: BLE001 - whatever a package raises while it is imported
        return None, f"cannot be imported: {type(error).__name__}: {error}"
    wrong = _wrong(point.name, found)
    return (None, wrong) if wrong else (found, "")


def _wrong(name: str, found: Any) -> str:
    """Return what a plug-in lacks; nothing where it can be used."""
    if isinstance(found, type) or not callable(getattr(found, "configure", None)):
        return f"found {_shown(found)}, expected an instance of cagrpc.backends.plugin.BackendPlugin"
    if getattr(found, "name", None) != name:
        return f'its name is {shown(getattr(found, "name", None))}, expected that of the entry point, "{name}"'
    fields: Any = getattr(found, "backend_fields", None)
    nodes: Any = getattr(found, "kubernetes_fields", None)
    if not _is_form(fields) or fields.model_fields.keys() != {name}:
        return f'backend_fields: expected a cagrpc.forms.Form with the one field "{name}", found {_shown(fields)}'
    if nodes is not None and not _is_form(nodes):
        return f"kubernetes_fields: expected a cagrpc.forms.Form or None, found {_shown(nodes)}"
    if nodes is not None and not all(key.startswith(f"{name}_") for key in nodes.model_fields):
        return f'kubernetes_fields: expected names that begin with "{name}_", found {_shown(nodes)}'
    sections = {"backend_fields": fields, "kubernetes_fields": nodes}
    required = [
        f"{section}.{key}"
        for section, form in sections.items()
        if form is not None
        for key, field in form.model_fields.items()
        if field.is_required()
    ]
    return f"{', '.join(required)}: expected a default, for configurations of other backends" if required else ""


def _is_form(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Form)


def _shown(found: Any) -> str:
    if _is_form(found):
        return f"one with {', '.join(found.model_fields) or 'none'}"
    return f"the class {found.__name__}" if isinstance(found, type) else shown(found)


def _names(plugin: BackendPlugin) -> set[str]:
    nodes = plugin.kubernetes_fields
    return {plugin.name, *plugin.backend_fields.model_fields, *(nodes.model_fields if nodes is not None else ())}


def _package(point: EntryPoint) -> str:
    """Return name and version of the package that has the entry point."""
    return "?" if point.dist is None else f"{point.dist.name} {point.dist.version}"


OWN: tuple[BackendPlugin, ...] = (SimulatedPlugin(), ClusterApiPlugin(), KarpenterPlugin(), ExternalGrpcPlugin())
"""The first is the default."""
BACKEND_PACKAGES: Mapping[str, str] = {"ec2": "cagrpc-ec2"}
"""The package of this repository that brings a field of the section `backend`. Who uses the field without the package
is told to install it."""
CATALOGUE_PACKAGES: Mapping[str, str] = {"aws": "cagrpc-ec2"}
"""The package that brings a cloud of `cagrpc catalogue`."""

_POINTS = tuple(entry_points(group=GROUP))
_FOUND = with_packages(OWN, _POINTS)

BACKENDS: tuple[BackendPlugin, ...] = _FOUND.usable
"""All that can be used."""

PROBLEMS: tuple[str, ...] = _FOUND.problems
"""Problems of packages whose backends cannot be used. No configuration is valid with one: what it means might depend on
it."""


_ABSENT = {name: package for name, package in BACKEND_PACKAGES.items() if name not in {each.name for each in _POINTS}}


def chosen(backend: Form, plugins: Sequence[BackendPlugin] = BACKENDS) -> BackendPlugin:
    """Return the plug-in whose fields the section `backend` sets. Raises ValueError for fields of several."""
    given = [each for each in plugins if each.backend_fields.model_fields.keys() & backend.model_fields_set]
    if len(given) > 1:
        raise ValueError(f"found fields of {' and '.join(each.name for each in given)}, expected those of one backend")
    return given[0] if given else plugins[0]


def backend_fields(plugins: Sequence[BackendPlugin] = BACKENDS) -> type[Form]:
    """Return the base class of the section `backend` with the fields of all backends, those that are not installed
    among them."""

    def of_one(section: Form) -> Form:
        chosen(section, plugins)
        return section

    return create_model(  # type: ignore[call-overload,no-any-return] # fields that are known at run time
        "BackendFields",
        __base__=tuple(each.backend_fields for each in plugins),
        __validators__={"of_one": model_validator(mode="after")(of_one)},
        **{name: (_refused(package), None) for name, package in _ABSENT.items()},
    )


def _refused(package: str) -> Any:
    """Return the type of a field that nothing may be written to."""

    def refuse(_: Any) -> None:
        raise ValueError(_install(package))

    return Annotated[None, BeforeValidator(refuse), Field(description=f"Needs the package `{package}`.")]


def _install(package: str) -> str:
    return f"needs the package {package}, which is not installed: pip install {package}"


def kubernetes_fields(plugins: Sequence[BackendPlugin] = BACKENDS) -> type[Form]:
    """Return the base class of the section `kubernetes` with the fields of all backends."""
    bases = tuple(each.kubernetes_fields for each in plugins if each.kubernetes_fields is not None)
    return create_model("KubernetesFields", __base__=bases or (Form,))


def cluster_sources() -> Mapping[str, SectionSource]:
    """Return what reads sections of the configuration from a running cluster, by name."""
    sources = [source for each in BACKENDS if (source := getattr(each, "cluster_source", None)) is not None]
    return {each.name: each for each in sources}


def catalogue_source(cloud: str) -> CatalogueSource:
    """Return what reads the catalogue of a cloud. Raises InvalidInput where no plug-in does, and InvalidConfiguration
    where that may be because a package cannot be used."""
    sources = [source for each in BACKENDS if (source := getattr(each, "catalogue_source", None)) is not None]
    known: Mapping[str, CatalogueSource] = {each.name: each for each in sources}
    if cloud in known:
        return known[cloud]
    if PROBLEMS:
        raise InvalidConfiguration(PROBLEMS)
    if cloud in CATALOGUE_PACKAGES:
        raise InvalidInput(f"cagrpc catalogue {cloud} {_install(CATALOGUE_PACKAGES[cloud])}")
    expected = sorted({*known, *CATALOGUE_PACKAGES})
    raise InvalidInput(f"found {cloud}, expected {' or '.join(expected)}{did_you_mean(cloud, expected)}")
