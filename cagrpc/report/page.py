"""The report as one HTML file, without scripts and without anything from elsewhere. The page is
`templates/report.html`: what can be had comes first, then why not more, and what is too long is folded away.
On a phone the rows of its tables are cards. Nodes are bars of SVG, each picture with a title and a description for
screen readers; colours are the page's classes, so that they follow light and dark. Texts in pictures are escaped
here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from cagrpc.report.model import Cause, Report, ShapeUse
from cagrpc.report.sentences import (
    HOW,
    anew,
    groups_words,
    headline,
    left_out_words,
    stays_words,
    summary,
    warnings_of,
    what_to_change,
)
from solver.model.money import DUST_USD_PER_HOUR, hourly, monthly
from solver.model.quantities import pluralize

_WIDE, _TALL = 4, 24
"""Of a bar."""


@dataclass(frozen=True, slots=True)
class Fall:
    """A line of what the pods cost if they were placed anew: a total, or the part of a cause."""

    label: str
    usd_per_hour: float
    css: str
    begin: float
    """Where its bar begins and ends, in hundredths of the largest cost."""
    end: float
    words: str = ""
    """What to change, or how it is computed."""


def falls(report: Report) -> list[Fall]:
    """Return the lines from the present cost to the least, without causes that cost nothing."""
    totals = report.present_usd_per_hour or 0.0, report.planned.usd_per_hour
    most = max(*totals, *(each.left_usd_per_hour for each in report.steps))
    words = {each.cause: what_to_change(each) for each in report.changes}
    return list(_falls(report, 100 / (most or 1.0), words))


def _falls(report: Report, scale: float, words: Mapping[Cause, str]) -> Iterator[Fall]:
    if report.present_usd_per_hour is not None:
        yield _total("now", report.present_usd_per_hour, scale)
    else:
        yield _total("best plan found", report.planned.usd_per_hour, scale)
    for each in report.steps:
        if abs(each.usd_per_hour) >= DUST_USD_PER_HOUR or each.left_out is not None:
            before, left = each.left_usd_per_hour + each.usd_per_hour, each.left_usd_per_hour
            css = "gain" if each.usd_per_hour >= 0 else "loss"
            begin, end = sorted((before * scale, left * scale))
            said = words.get(each.cause) or HOW[each.cause]
            if each.left_out is not None:
                said = f"{said} But {left_out_words(each.left_out)}."
            yield Fall(each.cause.value, -each.usd_per_hour, css, begin, end, said)
        if each.cause is Cause.SHAPES:
            yield _total("best plan found", report.planned.usd_per_hour, scale)
    if report.least_usd_per_hour is not None:
        yield _total("proven least", report.least_usd_per_hour, scale)


def _total(label: str, cost: float, scale: float) -> Fall:
    return Fall(label, cost, "total", 0, cost * scale)


def bars(shape: ShapeUse) -> str:
    """Return the nodes of a shape as a picture: of each how much of its cpu pods ask for."""
    parts = []
    for index, each in enumerate(shape.bars):
        x, full = index * _WIDE, min(1.0, each.cpu + each.cpu_overhead) * _TALL
        parts.append(f'<rect class="room" x="{x}" y="0" width="{_WIDE - 1}" height="{_TALL}"/>')
        parts.append(f'<rect class="used" x="{x}" y="{_TALL - full:.1f}" width="{_WIDE - 1}" height="{full:.1f}"/>')
    title, wide = escape(f"CPU requested on each node of {shape.group}"), len(shape.bars) * _WIDE
    cpu, _ = mean(shape)
    description = f"{pluralize(shape.nodes, 'node')}, on average {cpu:.0%} of the CPU requested"
    return (
        f'<svg class="bars" width="{wide}" height="{_TALL}" viewBox="0 0 {wide} {_TALL}" role="img"'
        f' aria-label="{title}"><title>{title}</title><desc>{description}</desc>{"".join(parts)}</svg>'
    )


def mean(shape: ShapeUse) -> tuple[float, float]:
    """Return which part of cpu and memory pods ask for, those that come with nodes included."""
    nodes = max(1, shape.nodes)
    cpu = sum(each.nodes * (each.cpu + each.cpu_overhead) for each in shape.bars) / nodes
    return cpu, sum(each.nodes * (each.memory + each.memory_overhead) for each in shape.bars) / nodes


def as_html(report: Report) -> str:
    """Return the page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(
        pluralize=pluralize,
        hourly=hourly,
        monthly=monthly,
        mean=mean,
        stays_words=stays_words,
        changed=lambda deltas: groups_words(deltas) or "no node",
    )
    template = environment.from_string((files("cagrpc.report") / "templates" / "report.html").read_text("utf-8"))
    return template.render(
        report=report,
        headline=headline(report),
        summary=summary(report),
        anew=anew(report),
        cautions=tuple(warnings_of(report)),
        falls=falls(report),
        anew_nodes={each.group: each.nodes for each in report.after.shapes},
        bars=lambda shape: Markup(bars(shape)),  # noqa: S704 - escaped there
        tables=(
            ("Provisioner or NodePool", report.by_pool),
            ("Zone", report.by_zone),
            ("Capacity type", report.by_capacity_type),
        ),
    )
