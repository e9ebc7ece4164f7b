"""The list of all backends: those that come with cagrpc, each with its folder and an entry here and named by no other
module, and those of installed packages (`packages`), which may be of this repository as well (`plugins/`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, create_model, model_validator

from cagrpc.backends.cluster_api.plugin import ClusterApiPlugin
from cagrpc.backends.karpenter.plugin import KarpenterPlugin
from cagrpc.backends.packages import GROUP, with_packages
from cagrpc.backends.plugin import BackendPlugin, CatalogueSource
from cagrpc.backends.simulated.plugin import SimulatedPlugin
from cagrpc.errors import InvalidConfiguration, InvalidInput, did_you_mean
from cagrpc.forms import Form

OWN: tuple[BackendPlugin, ...] = (SimulatedPlugin(), ClusterApiPlugin(), KarpenterPlugin())
"""The first is the default."""
BACKEND_PACKAGES: Mapping[str, str] = {"ec2": "cagrpc-ec2"}
"""By field of the section `backend`: the package of this repository that brings it. Who uses the field without the
package is told to install it."""
CATALOGUE_PACKAGES: Mapping[str, str] = {"aws": "cagrpc-ec2"}
"""The same by cloud of `cagrpc catalogue`."""

_POINTS = tuple(entry_points(group=GROUP))
_FOUND = with_packages(OWN, _POINTS)

BACKENDS: tuple[BackendPlugin, ...] = _FOUND.usable
"""All that can be used."""

PROBLEMS: tuple[str, ...] = _FOUND.problems
"""Of packages whose backends cannot be used. No configuration is valid with one: what it means might depend on it."""


_ABSENT = {name: package for name, package in BACKEND_PACKAGES.items() if name not in {each.name for each in _POINTS}}


def chosen(backend: Form, plugins: Sequence[BackendPlugin] = BACKENDS) -> BackendPlugin:
    """Return the plug-in whose fields the section `backend` sets. Raises ValueError for fields of several."""
    given = [each for each in plugins if each.backend_fields.model_fields.keys() & backend.model_fields_set]
    if len(given) > 1:
        raise ValueError(f"found fields of {' and '.join(each.name for each in given)}, expected those of one backend")
    return given[0] if given else plugins[0]


def backend_fields(
    plugins: Sequence[BackendPlugin] = BACKENDS, absent: Mapping[str, str] = MappingProxyType(_ABSENT)
) -> type[Form]:
    """Return the base class of the section `backend` with the fields of all backends. `absent` has those that are not
    installed, with their packages."""

    def of_one(section: Form) -> Form:
        chosen(section, plugins)
        return section

    return create_model(  # type: ignore[call-overload,no-any-return] # fields that are known at run time
        "BackendFields",
        __base__=tuple(each.backend_fields for each in plugins),
        __validators__={"of_one": model_validator(mode="after")(of_one)},
        **{name: (_refused(package), None) for name, package in absent.items()},
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


def catalogue_source(cloud: str, plugins: Sequence[BackendPlugin] = BACKENDS) -> CatalogueSource:
    """Return what reads the catalogue of a cloud. Raises InvalidInput where no plug-in does, and InvalidConfiguration
    where that may be because a package cannot be used."""
    sources = [source for each in plugins if (source := getattr(each, "catalogue_source", None)) is not None]
    known: Mapping[str, CatalogueSource] = {each.name: each for each in sources}
    if cloud in known:
        return known[cloud]
    if PROBLEMS:
        raise InvalidConfiguration(PROBLEMS)
    if cloud in CATALOGUE_PACKAGES:
        raise InvalidInput(f"cagrpc catalogue {cloud} {_install(CATALOGUE_PACKAGES[cloud])}")
    expected = sorted({*known, *CATALOGUE_PACKAGES})
    raise InvalidInput(f"found {cloud}, expected {' or '.join(expected)}{did_you_mean(cloud, expected)}")
