"""A hunt for plans that the kube-scheduler does not follow, or that leave out what it would take: random clusters are
planned as `cagrpc plan` does, and the scheduler's own plug-ins (tests/oracle) judge.

    python -m bench.hunt [--seconds S | --clusters N] [--seed S] [--profile NAME ...] [--into DIRECTORY] [--oldest]
    python -m bench.hunt --replay FILE ...

Each thing that is wrong has a kind, by which it is counted; of each kind the first cluster is shrunk and written into
the directory; `--replay` judges such a file again. Some kinds are tolerated, each with its reason. The exit code is 1
where there is any other.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from bench.hunted.cases import Case
from bench.hunted.clusters import PROFILES, cluster
from bench.hunted.judging import TOLERATED, Found, judged
from bench.hunted.shrinking import shrunk
from tests.oracle import KubeScheduler, program

_MOST_SHOWN = 4
_MOST_CHARACTERS = 400


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="how long, and no number of clusters")
    parser.add_argument("--clusters", type=int, default=1000, help="how many, of all profiles in turn")
    parser.add_argument("--seed", type=int, default=1, help="of the first cluster")
    parser.add_argument("--profile", choices=sorted(PROFILES), nargs="+", default=list(PROFILES))
    parser.add_argument("--into", type=Path, help="where the shrunk cases go; without it nothing is shrunk")
    parser.add_argument("--oldest", action="store_true", help="judge by the oldest release")
    parser.add_argument("--replay", type=Path, nargs="+", help="judge these cases, and draw none")
    options = parser.parse_args()
    with KubeScheduler(program(oldest=options.oldest)) as scheduler, tempfile.TemporaryDirectory() as directory:
        hunt = Hunt(scheduler, Path(directory), options.into)
        if options.replay:
            for path in options.replay:
                hunt.look(path.stem, json.loads(path.read_text()), loud=True)
        else:
            began = time.monotonic()
            for number in range(sys.maxsize if options.seconds else options.clusters):
                if options.seconds and time.monotonic() - began > options.seconds:
                    break
                profile = options.profile[number % len(options.profile)]
                seed = options.seed + number // len(options.profile)
                hunt.look(f"{profile}-{seed}", cluster(profile, seed))
        print(hunt.table())
        for (kind, about), said in hunt.first.items():
            print(f"{kind} | {about} | {said[:_MOST_CHARACTERS]}")
    return 1 if hunt.faults else 0


class Hunt:
    """Judges one cluster after the other, and counts what is wrong."""

    def __init__(self, scheduler: KubeScheduler, directory: Path, into: Path | None = None) -> None:
        self._scheduler, self._directory, self._into = scheduler, directory, into
        self.clusters = 0
        self.kinds: Counter[str] = Counter()
        self.about: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By kind, which constraints the pods have."""
        self.first: dict[tuple[str, str], str] = {}
        """By kind and constraints, the first cluster, with what was said."""

    @property
    def faults(self) -> dict[str, int]:
        """What was found that is not tolerated, by kind."""
        return {kind: count for kind, count in self.kinds.items() if kind not in TOLERATED}

    def look(self, name: str, case: Case, *, loud: bool = False) -> list[Found]:
        """Judge a case; with `loud`, say what is wrong with it."""
        self.clusters += 1
        found = judged(case, self._scheduler, self._directory)
        for each in found:
            self.kinds[each.kind] += 1
            self.about[each.kind][each.about] += 1
            if (each.kind, each.about) not in self.first:
                self.first[each.kind, each.about] = f"{name}: {each.detail}"
                if self._into is not None and each.kind not in {*TOLERATED, "not read"}:
                    self._keep(name, case, each)
        if loud:
            print(
                f"{name}: "
                + ("; ".join(f"{each.kind}, {each.about} ({each.detail})" for each in found) or "as it should be")
            )
        return found

    def _keep(self, name: str, case: Case, fault: Found) -> None:
        """Write the smallest case with this fault, and say where."""
        assert self._into is not None

        def still(smaller: Case) -> bool:
            try:
                found = judged(smaller, self._scheduler, self._directory, free=False)
            except (ValueError, KeyError, TypeError):  # it is no case any more
                return False
            return any(each.kind == fault.kind for each in found)

        small = shrunk(case, still)
        said = next(iter(judged(small, self._scheduler, self._directory, free=False)), fault)
        self._into.mkdir(parents=True, exist_ok=True)
        path = self._into / f"{name}-{said.kind.replace(' ', '-')}.json"
        path.write_text(
            json.dumps({**small, "features": {"kind": said.kind, "about": said.about, "said": said.detail}}, indent=1)
            + "\n"
        )
        print(f"{path.name} | {said.kind} | {said.about} | {said.detail}", flush=True)

    def table(self) -> str:
        """Return what was found, by kind, as a table in Markdown."""
        lines = [
            f"{self.clusters} clusters.",
            "",
            "| found | clusters | of 1,000 | pods with | |",
            "|---|---:|---:|---|---|",
        ]
        for kind, count in self.kinds.most_common():
            share = 1000 * count / max(1, self.clusters)
            about = ", ".join(f"{words} {times}" for words, times in self.about[kind].most_common(_MOST_SHOWN) if words)
            lines.append(f"| {kind} | {count} | {share:.1f} | {about} | {TOLERATED.get(kind, '')} |")
        return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
