"""The report as one HTML file, without scripts and without anything from elsewhere. The page is
`templates/report.html`. Its pictures are SVG: the steps as a waterfall, and nodes as bars. Each has a title and a
description for screen readers, and the page has its numbers as a table as well; colours are the page's classes, so that
they follow light and dark. Texts in pictures are escaped here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from cagrpc.report.model import Report, ShapeUse
from cagrpc.report.sentences import HOW, counted, sentence, summary, way
from solver.model.money import hourly, monthly
from solver.model.plan import gap_words

_WIDTH = 640
_LABEL = 210
_ROW = 30
_BAR = 18
_FIGURE = 92
"""Room for a number at the right."""
_TALL = 46
"""Of the bars of nodes."""


@dataclass(frozen=True, slots=True)
class _Fall:
    label: str
    words: str
    css: str
    begin: float
    end: float


def waterfall(report: Report) -> str:
    """Return the steps from the present cost to the least."""
    falls = list(_falls(report))
    most = max((max(each.begin, each.end) for each in falls), default=0.0) or 1.0
    scale = (_WIDTH - _LABEL - _FIGURE) / most
    parts = []
    for index, each in enumerate(falls):
        y, left, right = index * _ROW + 4, min(each.begin, each.end), max(each.begin, each.end)
        x, width = _LABEL + left * scale, max(1.0, (right - left) * scale)
        parts.append(f'<text class="label" x="{_LABEL - 8}" y="{y + 13}" text-anchor="end">{escape(each.label)}</text>')
        parts.append(f'<rect class="{each.css}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2"/>')
        parts.append(f'<text class="figure" x="{x + width + 6:.1f}" y="{y + 13}">{escape(each.words)}</text>')
    description = "; ".join(f"{each.label}: {each.words}" for each in falls)
    return _svg("waterfall", "From what stands to the least cost", description, len(falls) * _ROW, parts)


def _falls(report: Report) -> Iterator[_Fall]:
    if report.present_usd_per_hour is not None:
        yield _total("what stands", report.present_usd_per_hour)
    else:
        yield _total("best plan found", report.planned.usd_per_hour)
    for each in report.steps:
        if each.applies:
            before = each.left_usd_per_hour + each.usd_per_hour
            css = "gain" if each.usd_per_hour >= 0 else "loss"
            yield _Fall(each.cause.value, hourly(-each.usd_per_hour), css, before, each.left_usd_per_hour)
        if each.cause.value == "shapes of nodes":
            yield _total("best plan found", report.planned.usd_per_hour)
    if report.least_usd_per_hour is not None:
        yield _total("proven least", report.least_usd_per_hour)


def _total(label: str, cost: float) -> _Fall:
    return _Fall(label, hourly(cost), "total", 0, cost)


def bars(shape: ShapeUse) -> str:
    """Return the nodes of a shape, each as a bar of cpu and one of memory below."""
    each_wide = min(14.0, (_WIDTH - 60) / max(1, len(shape.bars)))
    parts = []
    cpus = [(each.cpu, each.cpu_overhead) for each in shape.bars]
    memories = [(each.memory, each.memory_overhead) for each in shape.bars]
    for row, (name, fills) in enumerate((("cpu", cpus), ("memory", memories))):
        top = row * (_TALL + 10)
        parts.append(f'<text class="label" x="0" y="{top + _TALL / 2 + 4}">{name}</text>')
        for index, (used, overhead) in enumerate(fills):
            x, width = 60 + index * each_wide, max(1.0, each_wide - 1.5)
            tall, least = min(1.0, used) * _TALL, min(1.0, overhead) * _TALL
            parts.append(f'<rect class="room" x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_TALL}"/>')
            y = top + _TALL - least
            parts.append(f'<rect class="overhead" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{least:.1f}"/>')
            y = max(float(top), y - tall)
            parts.append(f'<rect class="used" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{tall:.1f}"/>')
    cpu, memory = mean(shape)
    description = f"{shape.nodes} nodes, on average {cpu:.0%} of cpu and {memory:.0%} of memory asked for"
    return _svg("bars", f"How full nodes of {shape.group} are", description, 2 * _TALL + 10, parts)


def mean(shape: ShapeUse) -> tuple[float, float]:
    """Return which part of cpu and memory pods ask for, those that come with nodes included."""
    nodes = max(1, shape.nodes)
    cpu = sum(each.nodes * (each.cpu + each.cpu_overhead) for each in shape.bars) / nodes
    return cpu, sum(each.nodes * (each.memory + each.memory_overhead) for each in shape.bars) / nodes


def _svg(css: str, title: str, description: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg class="{css}" viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )


def as_html(report: Report) -> str:
    """Return the page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(
        counted=counted,
        hourly=hourly,
        monthly=monthly,
        sentence=sentence,
        mean=mean,
        gib=lambda amount: f"{amount / 2**30:,.0f} GiB",
        way=way,
        gap_words=gap_words,
    )
    template = environment.from_string((files("cagrpc.report") / "templates" / "report.html").read_text("utf-8"))
    return template.render(
        report=report,
        summary=summary(report),
        how=HOW,
        waterfall=Markup(waterfall(report)),  # noqa: S704 - escaped there
        bars=lambda shape: Markup(bars(shape)),  # noqa: S704 - escaped there
        tables=(
            ("Node group", report.by_group),
            ("Provisioner or NodePool", report.by_pool),
            ("Zone", report.by_zone),
            ("Capacity type", report.by_capacity_type),
        ),
    )
