"""One name for one thing: no two classes of `solver`, `cagrpc` and the plug-ins share a name; and what is made of many
parts gets them as values that have names."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("solver", "cagrpc", "plugins/ec2/cagrpc_ec2")
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
    for path, each in _classes(*ROOMS):
        homes[each.name].append(path)
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_no_module_gives_a_name_two_values() -> None:
    """A later constant takes the place of an earlier one also in functions above it, which no linter says."""
    twice = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            body = ast.parse(path.read_text()).body
            targets = [each.targets for each in body if isinstance(each, ast.Assign)]
            targets += [[each.target] for each in body if isinstance(each, ast.AnnAssign)]
            names = Counter(name.id for each in targets for name in each if isinstance(name, ast.Name))
            twice += [f"{path.relative_to(ROOT)}: {name}" for name, count in names.items() if count > 1]
    assert not twice


def test_what_is_made_of_many_parts_gets_them_as_values() -> None:
    wide: dict[str, int] = {}
    found = 0
    for _, each in _classes(*ROOMS):
        for method in each.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                found += 1
                count = len(method.args.args) + len(method.args.kwonlyargs) - 1  # without self
                if count > MOST_PARAMETERS:
                    wide[each.name] = count
    assert found > 100
    assert not wide
