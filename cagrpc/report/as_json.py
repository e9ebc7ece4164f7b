"""The report as JSON, for machines: the values of `model` under their names, and the sentences. An interface: fields
are added, none is renamed."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any

from cagrpc.report.model import ClusterName, Report
from cagrpc.report.sentences import HOW, headline, left_out_words, sentence, step_sentence, summary, way, why_not


def as_json(report: Report) -> dict[str, Any]:
    """Return the report. Costs are US dollars per hour, `gap` and bars are fractions."""
    document: dict[str, Any] = _plain(report)
    for step, value in zip(document["steps"], report.steps, strict=True):
        step["how"] = HOW[value.cause]
        if value.left_out is not None:
            step["left_out"]["sentence"] = left_out_words(value.left_out)
    for change, found in zip(document["changes"], report.changes, strict=True):
        change["sentence"] = sentence(found)
    if report.consolidation is not None:
        for step, moved in zip(document["consolidation"]["steps"], report.consolidation.steps, strict=True):
            step["sentence"] = step_sentence(moved)
        said = {"summary": way(report.consolidation), "why_not_more": list(why_not(report.consolidation))}
        document["consolidation"] = {**said, **document["consolidation"]}
    return {"headline": headline(report), "summary": summary(report), **document}


def _plain(value: Any) -> Any:
    if isinstance(value, ClusterName):
        return value.text
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return value
