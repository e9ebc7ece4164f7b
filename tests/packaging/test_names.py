"""One name for one thing: no two classes of `solver`, `cagrpc` and the plug-ins share a name."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_class_name_is_there_twice() -> None:
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for room in ("solver", "cagrpc", "plugins/ec2/cagrpc_ec2"):
        for path in sorted((ROOT / room).rglob("*.py")):
            if "gen" not in path.parts:
                for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
                    homes[name].append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}
