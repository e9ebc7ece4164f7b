"""The report as one HTML file, without scripts and without anything from elsewhere. The page is
`templates/report.html`, pictures are `charts`'."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from cagrpc.report import charts
from cagrpc.report.model import Report
from cagrpc.report.sentences import HOW, a_month, counted, dollars, sentence, summary, way
from solver.model.plan import gap_words

_MIB = 2**20


def as_html(report: Report) -> str:
    """Return the page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(
        counted=counted,
        dollars=dollars,
        a_month=a_month,
        sentence=sentence,
        mean=charts.mean,
        gib=_gib,
        way=way,
        gap_words=gap_words,
    )
    template = environment.from_string((files("cagrpc.report") / "templates" / "report.html").read_text("utf-8"))
    return template.render(
        report=report,
        summary=summary(report),
        how=HOW,
        waterfall=Markup(charts.waterfall(report)),  # noqa: S704 - escaped there
        bars=lambda shape: Markup(charts.bars(shape)),  # noqa: S704 - escaped there
        tables=(
            ("Node group", report.by_group),
            ("Provisioner or NodePool", report.by_pool),
            ("Zone", report.by_zone),
            ("Capacity type", report.by_capacity_type),
        ),
    )


def _gib(amount: int) -> str:
    return f"{amount / _MIB / 1024:,.0f} GiB"
