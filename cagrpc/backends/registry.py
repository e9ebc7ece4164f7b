"""The list of all backends: our own, each with its folder and an entry here and named by no other module, and those of
installed packages (`packages`)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points

from pydantic import create_model, model_validator

from cagrpc.backends.cluster_api.plugin import ClusterApiPlugin
from cagrpc.backends.ec2.plugin import Ec2Plugin
from cagrpc.backends.karpenter.plugin import KarpenterPlugin
from cagrpc.backends.packages import GROUP, with_packages
from cagrpc.backends.plugin import BackendPlugin
from cagrpc.backends.simulated.plugin import SimulatedPlugin
from cagrpc.forms import Form

OWN: tuple[BackendPlugin, ...] = (SimulatedPlugin(), ClusterApiPlugin(), KarpenterPlugin(), Ec2Plugin())
"""The first is the default."""

_FOUND = with_packages(OWN, entry_points(group=GROUP))

BACKENDS: tuple[BackendPlugin, ...] = _FOUND.usable
"""All that can be used."""

PROBLEMS: tuple[str, ...] = _FOUND.problems
"""Of packages whose backends cannot be used. No configuration is valid with one: what it means might depend on it."""


def chosen(backend: Form, plugins: Sequence[BackendPlugin] = BACKENDS) -> BackendPlugin:
    """Return the plug-in whose fields the section `backend` sets. Raises ValueError for fields of several."""
    given = [each for each in plugins if each.backend_fields.model_fields.keys() & backend.model_fields_set]
    if len(given) > 1:
        raise ValueError(f"found fields of {' and '.join(each.name for each in given)}, expected those of one backend")
    return given[0] if given else plugins[0]


def backend_fields(plugins: Sequence[BackendPlugin] = BACKENDS) -> type[Form]:
    """Return the base class of the section `backend` with the fields of all backends."""

    def of_one(section: Form) -> Form:
        chosen(section, plugins)
        return section

    return create_model(
        "BackendFields",
        __base__=tuple(each.backend_fields for each in plugins),
        __validators__={"of_one": model_validator(mode="after")(of_one)},  # type: ignore[dict-item] # pydantic's decorator is typed for methods
    )


def kubernetes_fields(plugins: Sequence[BackendPlugin] = BACKENDS) -> type[Form]:
    """Return the base class of the section `kubernetes` with the fields of all backends."""
    bases = tuple(each.kubernetes_fields for each in plugins if each.kubernetes_fields is not None)
    return create_model("KubernetesFields", __base__=bases or (Form,))
