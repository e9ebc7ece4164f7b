"""`cagrpc observe`: see `cagrpc.offline.observing`."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cagrpc.cli import flags
from cagrpc.errors import InvalidInput, reason_of
from solver.model.quantities import pluralize

if TYPE_CHECKING:
    from cagrpc.controllers.episodes.model import Episode

SUMMARY = "watch a cluster: what its autoscaler does, beside what would have been planned"
DETAILS = (
    "Reports on each time that pods wait in a cluster with the cluster-autoscaler or Karpenter, which is only listed"
    " and watched: nothing is written there. Without --kubeconfig it is the cluster that this runs in. It ends with"
    " Ctrl-C or --for, and then writes the report. The file of --kept has what was seen, and the next run goes on from"
    " it."
)
EXAMPLES = (
    "cagrpc observe --kubeconfig ~/.kube/config --for 8h --to report.html report.md",
    "cagrpc observe --from episodes.json --to report.md",
)
FORMS = (".md", ".html", ".json")
_ENDS = (signal.SIGINT, signal.SIGTERM)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_cluster(parser, "the cluster to watch")
    parser.add_argument("--for", dest="duration", metavar="DURATION", help="how long: 30m, 8h (default: until Ctrl-C)")
    parser.add_argument(
        "--provisioners", type=Path, nargs="+", action="extend", default=[], metavar="FILE",
        help="what could be opened: Karpenter NodePools or Provisioners, YAML (default: the cluster's NodePools or"
        " MachineDeployments, else the node groups that its nodes show)",
    )  # fmt: skip
    flags.add_file(parser, "--catalogue", "instance types and prices, CSV (default: the embedded catalogue)")
    flags.add_file(parser, "--prices", "prices, CSV: instance_type,usd_per_hour[,zone][,capacity_type]")
    parser.add_argument("--gang-label", metavar="KEY", help="pods with the same value of this label are one gang")
    parser.add_argument(
        "--scheduler", action="append", metavar="NAME", help="whose pods count (default: default-scheduler)"
    )
    parser.add_argument(
        "--kept", type=Path, default=Path("episodes.json"), metavar="FILE",
        help="the file that keeps what was seen (default: %(default)s)",
    )  # fmt: skip
    flags.add_file(
        parser,
        "--from",
        "report on what was kept, and watch nothing: such a file, or the key `episodes` of a server's ConfigMap"
        " cagrpc-episodes",
    )
    parser.add_argument(
        "--plan-again", action="store_true", help="with --from: plan each episode again from its recorded state"
    )
    parser.add_argument(
        "--budget", default="20s", metavar="DURATION", help="with --plan-again: how long to plan (default: 20s)"
    )
    parser.add_argument(
        "--to", type=Path, nargs="+", action="extend", default=[], metavar="FILE",
        help=f"where to write the report, its form by the suffix: {', '.join(FORMS)} (default: Markdown to stdout)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Watch, and report."""
    for each in options.to:
        if each.suffix not in FORMS:
            raise InvalidInput(f"--to {each}: its suffix is none of {', '.join(FORMS)}")
    kept = getattr(options, "from")
    if options.plan_again and kept is None:
        raise InvalidInput("--plan-again takes --from")
    _write(options.to, _watched(options) if kept is None else _kept(options, kept))
    return 0


def _watched(options: argparse.Namespace) -> Sequence[Episode]:
    from cagrpc.api.core.gangs import DEFAULT_GANG_LABEL
    from cagrpc.api.core.schedulers import DEFAULT_SCHEDULERS
    from cagrpc.api.encoding.json_documents import timestamp
    from cagrpc.controllers.episodes.model import sentences
    from cagrpc.durations import seconds_of_flag
    from cagrpc.offline.inputs import Inputs
    from cagrpc.offline.observing import observe
    from cagrpc.output import say
    from cagrpc.report.standing import groups_that_stand

    what = Inputs(
        kubeconfig=flags.cluster(options),
        context=options.context,
        provisioners=tuple(options.provisioners),
        catalogue=options.catalogue,
        prices=options.prices,
        gang_label=options.gang_label or DEFAULT_GANG_LABEL,
        schedulers=frozenset(options.scheduler or DEFAULT_SCHEDULERS),
    )
    seconds = None if options.duration is None else seconds_of_flag(options.duration, "--for")

    def tell(episode: Episode) -> None:
        until, pods = timestamp(episode.closed_at_seconds), pluralize(episode.pods, "pod")
        say(f"{until}: {pods}; {'; '.join(sentences(episode))}", flush=True)

    with _until(seconds) as ended:
        return [each.episode for each in observe(what, options.kept, groups_that_stand, tell, ended)]


@contextmanager
def _until(seconds: float | None) -> Iterator[threading.Event]:
    """Yield what is set after so many seconds, or when the process is told to end."""
    ended = threading.Event()
    timer = threading.Timer(seconds or 0.0, ended.set)
    if seconds is not None:
        timer.daemon = True
        timer.start()
    told = threading.current_thread() is threading.main_thread()  # which alone hears of signals
    before = {each: signal.signal(each, lambda *_: ended.set()) for each in _ENDS} if told else {}
    try:
        yield ended
    finally:
        timer.cancel()
        for each, handler in before.items():
            signal.signal(each, handler)


def _kept(options: argparse.Namespace, path: Path) -> Sequence[Episode]:
    from cagrpc.controllers.episodes.log import read
    from cagrpc.durations import seconds_of_flag
    from cagrpc.offline.observing import planned_again
    from solver import Budget

    try:
        text = path.read_text(encoding="utf-8")
        found = list(read(text))
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {reason_of(error)}") from error
    except ValueError as error:
        raise InvalidInput(f"{path}: its episodes cannot be read: {error}") from error
    if not found and text.strip() not in ("", "[]"):
        raise InvalidInput(f"{path}: has no episodes; expected what `cagrpc observe --kept` has written")
    if options.plan_again:
        return planned_again(found, Budget(seconds_of_flag(options.budget, "--budget")))
    return [each.episode for each in found]


def _write(paths: Sequence[Path], episodes: Sequence[Episode]) -> None:
    from cagrpc.controllers.episodes.log import as_json
    from cagrpc.output import data_text, say, writing
    from cagrpc.report.episodes import as_html, as_markdown

    if not paths:
        say(as_markdown(episodes).rstrip("\n"))
    for path in paths:
        match path.suffix:
            case ".md":
                text = as_markdown(episodes)
            case ".html":
                text = as_html(episodes)
            case _:
                text = data_text([as_json(each) for each in episodes], "json")
        with writing():
            path.write_text(text, encoding="utf-8")
        say(f"{path} has {pluralize(len(episodes), 'episode')}")
