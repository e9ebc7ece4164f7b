"""One name for one thing: no two classes of `solver`, `cagrpc` and the plug-ins share a name; and what is made of many
parts gets them as values that have names."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_PARAMETERS = 7


def _classes(*rooms: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes of modules, with the module's path."""
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "gen" not in path.parts:
                for each in ast.parse(path.read_text()).body:
                    if isinstance(each, ast.ClassDef):
                        yield str(path.relative_to(ROOT)), each


def test_no_class_name_is_there_twice() -> None:
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for path, each in _classes("solver", "cagrpc", "plugins/ec2/cagrpc_ec2"):
        homes[each.name].append(path)
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_controllers_the_fleet_and_the_provider_are_made_of_few_things() -> None:
    wide: dict[str, int] = {}
    found = 0
    for _, each in _classes("cagrpc"):
        bases = {base.id for base in each.bases if isinstance(base, ast.Name)}
        if each.name not in ("Fleet", "Provider") and "Controller" not in bases:
            continue
        for method in each.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                found += 1
                count = len(method.args.args) + len(method.args.kwonlyargs) - 1  # without self
                if count > MOST_PARAMETERS:
                    wide[each.name] = count
    assert found > 12
    assert not wide
