"""Names of requests and PodTemplates: always valid for an API server, distinct, and never parsed."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.controllers.admission_checks.model import Purpose, own_request, purpose_of, request_name, template_name
from tests.support.controllers.kueue_objects import workload

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
PART = st.text("abz09", min_size=1, max_size=40)
NAMES = st.builds(
    lambda parts, joint: joint.join(parts)[:253].rstrip("-."),
    st.lists(PART, min_size=1, max_size=9),
    st.sampled_from(("-", ".", "-")),
)
LABELS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
ATTEMPTS = st.integers(1, 2**31)


@given(NAMES, NAMES, ATTEMPTS, LABELS)
def test_names_are_subdomains(workload: str, check: str, attempt: int, pod_set: str) -> None:
    name = request_name(workload, check, attempt)
    for each in (name, template_name(name, pod_set)):
        assert len(each) <= 253
        assert SUBDOMAIN.fullmatch(each), each
    if len(f"{workload}-{check}-{attempt}") <= 253:
        assert name == f"{workload}-{check}-{attempt}"
    assert name.endswith(f"-{attempt}")


@given(
    st.lists(
        st.tuples(NAMES, NAMES, st.integers(1, 12)), min_size=2, max_size=6, unique_by=lambda x: "-".join(map(str, x))
    )
)
def test_different_ones_stay_different_however_they_are_cut(named: list[tuple[str, str, int]]) -> None:
    assert len({request_name(*each) for each in named}) == len(named)


@given(LABELS, LABELS)
def test_templates_of_one_request_have_distinct_names(one: str, other: str) -> None:
    request = "r" * 240
    assert (template_name(request, one) == template_name(request, other)) == (one == other)


@given(st.text(max_size=20), NAMES, ATTEMPTS)
def test_the_purpose_is_read_back(uid: str, check: str, attempt: int) -> None:
    purpose = Purpose(uid, check, attempt, "2026-01-01T00:00:00Z")
    assert purpose_of({"metadata": {"annotations": purpose.annotations()}}) == purpose


def test_what_is_not_ours_is_for_nobody() -> None:
    for found in ({}, {"kueue.cagrpc.io/attempt": "²"}, {"kueue.cagrpc.io/attempt": "-1"}):
        assert purpose_of({"metadata": {"annotations": found}}) == Purpose("", "", 0, "")
    assert own_request(workload()).purpose.workload_uid == ""
