"""Episodes as Markdown and as one HTML file: those first in which the autoscaler was better. Texts are of whoever may
create objects: they are escaped in both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from cagrpc.api.encoding.json_documents import timestamp
from cagrpc.controllers.episodes.model import Better, Ended, Episode, GroupNodes, sentences
from cagrpc.output import printable
from solver.model.money import hourly
from solver.model.quantities import pluralize

HEADINGS: Mapping[Better, str] = {
    Better.AUTOSCALER: "Where the autoscaler was better",
    Better.PLAN: "Where the plan would have been better",
    Better.EQUAL: "Where both are the same",
    Better.UNKNOWN: "What could not be compared",
}
HOW = (
    "An episode begins when pods wait and ends when they have nodes. What came is what the cluster really had; the"
    " plan is what would have been planned from the same state, of the node groups that were known, and was let out by"
    " the independent checker. Each episode is compared by itself and begins with what really came: figures of several"
    " are not added up, as another choice would have led to other episodes. Costs are of new nodes, in US dollars per"
    " hour."
)
COLUMNS = ("since (UTC)", "pods", "what came", "by the plan", "the plan saves", "waited", "by the plan")
_UNTIL: Mapping[Ended, str] = {
    Ended.SERVED: "every pod had a node",
    Ended.QUIET: "nothing more came",
    Ended.LONG: "the longest time that is looked at was over",
}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~])")


def by_better(episodes: Iterable[Episode]) -> Iterator[tuple[str, Sequence[Episode]]]:
    """Yield the episodes under their headings, the newest first."""
    newest = sorted(episodes, key=lambda each: -each.opened_at_seconds)
    for better, heading in HEADINGS.items():
        found = [each for each in newest if each.better is better]
        if found:
            yield f"{heading}: {len(found)}", found


def cells(episode: Episode) -> Sequence[str]:
    """Return the row of an episode, by `COLUMNS`."""
    came, planned = episode.came, episode.planned
    saving = episode.saving_usd_per_hour
    return (
        timestamp(episode.opened_at_seconds),
        str(episode.pods),
        f"{hourly(came.usd_per_hour)}, {pluralize(came.node_count, 'node')}",
        "" if planned is None else f"{hourly(planned.usd_per_hour)}, {pluralize(planned.node_count, 'node')}",
        "" if saving is None else hourly(saving),
        _seconds(came.waited_seconds),
        "" if planned is None else _seconds(planned.waited_seconds),
    )


def details(episode: Episode) -> Iterator[str]:
    """Yield what there is to say of an episode, the difference first."""
    yield from sentences(episode)
    yield f"came: {_nodes(episode.came.nodes)}"
    if episode.planned is not None:
        yield f"planned: {_nodes(episode.planned.nodes)}"
    if episode.least_usd_per_hour is not None:
        yield f"proven: no plan that serves as much costs less than {hourly(episode.least_usd_per_hour)}"
    if episode.scale_ups:
        yield f"the autoscaler reported: {', '.join(f'{each.node_group} +{each.nodes}' for each in episode.scale_ups)}"
    if episode.choices:
        yield f"would have been chosen: {', '.join(f'{each.node_group} +{each.nodes}' for each in episode.choices)}"
    if episode.targets:
        changes = (f"{name} {before} to {after}" for name, (before, after) in episode.targets.items())
        yield f"target sizes: {', '.join(changes)}"
    yield f"it lasted {episode.closed_at_seconds - episode.opened_at_seconds:.0f} s, until {_UNTIL[episode.ended]}"


def as_markdown(episodes: Sequence[Episode]) -> str:
    """Return the report as Markdown."""
    lines = [f"# {title(episodes)}", "", HOW]
    for heading, found in by_better(episodes):
        rows = [COLUMNS, ["---"] * len(COLUMNS), *([_escaped(cell) for cell in cells(each)] for each in found)]
        lines += ["", f"## {heading}", "", *(f"| {' | '.join(row)} |" for row in rows)]
        for each in found:
            lines += ["", f"### {timestamp(each.opened_at_seconds)}: {pluralize(each.pods, 'pod')}", ""]
            lines += (f"- {_escaped(line)}" for line in details(each))
    return "\n".join(lines) + "\n"


def as_html(episodes: Sequence[Episode]) -> str:
    """Return the report as a page that needs nothing else."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((files("cagrpc.report") / "templates" / "episodes.html").read_text("utf-8"))
    found = [
        (
            heading,
            [(each, [printable(cell) for cell in cells(each)], [*map(printable, details(each))]) for each in some],
        )
        for heading, some in by_better(episodes)
    ]
    return template.render(title=title(episodes), how=HOW, columns=COLUMNS, found=found, timestamp=timestamp)


def title(episodes: Sequence[Episode]) -> str:
    return f"The autoscaler beside the plan: pods waited for nodes {pluralize(len(episodes), 'time')}"


def _nodes(found: Iterable[GroupNodes]) -> str:
    words = (
        f"{each.count} {each.node_group} ({hourly(each.usd_per_hour)}{', estimated' if each.estimated else ''})"
        for each in found
    )
    return ", ".join(words) or "no node"


def _seconds(seconds: float | None) -> str:
    return "not known" if seconds is None else f"{seconds:.0f} s"


def _escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", printable(" ".join(text.split())))
