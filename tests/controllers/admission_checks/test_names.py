"""Names of requests and PodTemplates: always valid for an API server, distinct, and never parsed."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.kueue import KueueWorld, check_state, config, pod_set, workload

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
PART = st.text("abz09", min_size=1, max_size=40)
NAMES = st.builds(
    lambda parts, joint: joint.join(parts)[:253].rstrip("-."),
    st.lists(PART, min_size=1, max_size=9),
    st.sampled_from(("-", ".", "-")),
)
LABELS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
CHECKS = st.dictionaries(NAMES, st.integers(0, 2**31 - 1), min_size=1, max_size=4)
"""With the number of attempts before."""


@given(NAMES, CHECKS, st.lists(LABELS, min_size=1, max_size=3, unique=True), st.text(max_size=20))
@example("a" * 250, {"b" * 99: 0, "b" * 98 + "c": 12}, ["main", "x" * 63], "uid")
@examples(60)
def test_names_are_subdomains_and_distinct(of: str, checks: dict[str, int], pod_sets: list[str], uid: str) -> None:
    states = [check_state(name, retryCount=count) for name, count in checks.items()]
    made = workload(*(pod_set(each, 1) for each in pod_sets), checks=states, name=of)
    made["metadata"]["uid"] = uid
    with KueueWorld(made, configs={name: config() for name in checks}) as world:
        world.settle()
        assert not world.events("FailedCreate")
        assert len(world.requests) == len(checks)
        assert len(world.templates) == len(checks) * len(pod_sets)
        for each in (*world.requests, *world.templates):
            assert len(each) <= 253
            assert SUBDOMAIN.fullmatch(each), each
        for name, count in checks.items():
            (request,) = (
                each for each, document in world.requests.items()
                if document["metadata"]["annotations"]["kueue.cagrpc.io/check"] == name
            )  # fmt: skip
            whole = f"{of}-{name}-{count + 1}"
            assert request == whole or (len(whole) > 253 and request.endswith(f"-{count + 1}"))
        version = world.api.latest_version
        world.play(KueueWorld.restart)
        assert world.api.latest_version == version, "another process knows them again"
