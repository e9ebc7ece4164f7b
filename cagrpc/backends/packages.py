"""Plug-ins of installed packages, by their entry points in the group `cagrpc.backends`. Each names an instance of
`BackendPlugin`, whose one field in the section `backend` has the entry point's name. One that cannot be used is left
out with a problem. The plug-ins of cagrpc itself are in `registry`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from cagrpc.backends.plugin import BackendPlugin
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
        return f"found {found!r:.100}, expected an instance of cagrpc.backends.plugin.BackendPlugin"
    if getattr(found, "name", None) != name:
        return f'its name is {getattr(found, "name", None)!r}, expected that of the entry point, "{name}"'
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
    return f"one with {', '.join(found.model_fields) or 'none'}" if _is_form(found) else f"{found!r:.100}"


def _names(plugin: BackendPlugin) -> set[str]:
    nodes = plugin.kubernetes_fields
    return {plugin.name, *plugin.backend_fields.model_fields, *(nodes.model_fields if nodes is not None else ())}


def _package(point: EntryPoint) -> str:
    """Return name and version of the package that has the entry point."""
    return "?" if point.dist is None else f"{point.dist.name} {point.dist.version}"
