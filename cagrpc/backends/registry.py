"""Every kind of backend there is. Adding one is its folder and an entry here; nothing else names it."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import create_model, model_validator

from cagrpc.backends.plugin import BackendPlugin
from cagrpc.backends.simulated.plugin import SimulatedPlugin
from cagrpc.forms import Form

BACKENDS: tuple[BackendPlugin, ...] = (SimulatedPlugin(),)
"""The first one is what a configuration without a word on backends has."""


def chosen(backend: Form, plugins: Sequence[BackendPlugin] = BACKENDS) -> BackendPlugin:
    """Return the plug-in of which the section `backend` has fields. Raises ValueError where it has those of several."""
    given = [each for each in plugins if each.backend_fields.model_fields.keys() & backend.model_fields_set]
    if len(given) > 1:
        raise ValueError(f"found fields of {' and '.join(each.name for each in given)}, expected those of one backend")
    return given[0] if given else plugins[0]


def backend_fields(plugins: Sequence[BackendPlugin] = BACKENDS) -> type[Form]:
    """Return the base of the section `backend`: the fields of all backends, of which one is chosen."""

    def of_one(section: Form) -> Form:
        chosen(section, plugins)
        return section

    return create_model(
        "BackendFields",
        __base__=tuple(each.backend_fields for each in plugins),
        __validators__={"of_one": model_validator(mode="after")(of_one)},  # type: ignore[dict-item] # pydantic's decorator is typed for methods
    )


def kubernetes_fields(plugins: Sequence[BackendPlugin] = BACKENDS) -> type[Form]:
    """Return the base of the section `kubernetes`: what backends add to it."""
    bases = tuple(each.kubernetes_fields for each in plugins if each.kubernetes_fields is not None)
    return create_model("KubernetesFields", __base__=bases or (Form,))
