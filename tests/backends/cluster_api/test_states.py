"""Whatever a provider writes into a Machine's status, it is read."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cagrpc.backends.cluster_api.objects import complaint_of, error_of, provider_id, state_of
from cagrpc.fleet.model import InstanceState

KEYS = st.sampled_from(
    ["conditions", "deprecated", "v1beta1", "failureReason", "failureMessage", "type", "status", "reason", "message"]
)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.sampled_from(["InfrastructureReady", "False"])
)
DOCUMENTS = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@given(status=DOCUMENTS, spec=DOCUMENTS, condition=st.dictionaries(KEYS, DOCUMENTS, max_size=4))
def test_any_document_has_a_state(status: Any, spec: Any, condition: dict[str, Any]) -> None:
    for document in (
        {"metadata": {}, "spec": spec, "status": status},
        {"metadata": {}, "status": {"conditions": [{"type": "InfrastructureReady", "status": "False", **condition}]}},
    ):
        assert state_of(document) is InstanceState.CREATING
        assert provider_id(document) == ""
        error = error_of(document)
        assert error is None or (error.code and error.message)
        assert isinstance(complaint_of(document), str)


def test_messages_are_short_enough_for_an_increment() -> None:
    status = {"failureReason": "CreateError", "failureMessage": "x" * 5_000}
    error = error_of({"metadata": {}, "status": status})
    assert error is not None
    assert len(error.message) == 500
