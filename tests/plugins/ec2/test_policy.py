"""The IAM policy in `deploy/` allows the calls that the backend makes, to what it makes them, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cagrpc import errors
from cagrpc_ec2.parameters import CLUSTER_TAG
from cagrpc_ec2.rates import documented_rates
from tests.support.ec2.world import RESERVATION, Ec2World, group, order

POLICY = Path(__file__).parents[3] / "deploy" / "iam-policy-ec2.json"

IMPLIED = {
    "ec2:CreateTags": "of a launch with tags",
    "iam:PassRole": "of a launch template with an instance profile",
}
"""Rights that EC2 asks for in the course of a launch."""


def statements() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(POLICY.read_text())["Statement"]
    return found


def actions(statement: dict[str, Any]) -> set[str]:
    written = statement["Action"]
    return {written} if isinstance(written, str) else set(written)


def use_everything(ec2: Ec2World) -> None:
    """Launch of each kind, list, and delete, with answers that are lost."""
    ec2.proxy.cloud.reservations[RESERVATION] = 1
    groups = [group(kind, capacity_type=kind) for kind in ("on-demand", "spot", "reserved")]
    backend = ec2.open(groups=groups)
    ec2.proxy.lose_answer("RunInstances")
    with pytest.raises(errors.Unavailable):
        backend.order(order("i1", *((each, 1) for each in groups)))
    backend.order(order("i1", *((each, 1) for each in groups)))
    instances = list(ec2.listed(backend).values())
    ec2.proxy.lose_answer("TerminateInstances")
    for each in (instances[:1], instances):
        try:
            backend.delete(each)
        except errors.Unavailable:
            continue
    assert ec2.proxy.alive == {}


def test_it_allows_every_call_that_is_made_and_no_other(ec2: Ec2World) -> None:
    use_everything(ec2)
    made = {f"ec2:{call.action}" for call in ec2.proxy.calls}
    allowed = set().union(*(actions(statement) for statement in statements()))
    assert allowed - IMPLIED.keys() == made
    assert IMPLIED.keys() <= allowed
    assert made == {f"ec2:{action}" for action in documented_rates()}, "a call rate for each, and for no other"


def test_launches_are_tagged_as_it_demands(ec2: Ec2World) -> None:
    use_everything(ec2)
    launches = [call.parameters for call in ec2.proxy.calls if call.action == "RunInstances"]
    for parameters in launches:
        tagged = {
            value: {
                parameters[key] for key in parameters if key.startswith(f"{name.removesuffix('.ResourceType')}.Tag.")
            }
            for name, value in parameters.items()
            if name.endswith(".ResourceType")
        }
        assert tagged.keys() == {"instance", "volume"}
        assert all({CLUSTER_TAG, "prod"} <= values for values in tagged.values())


def test_what_creates_and_what_ends_is_bound_to_the_cluster() -> None:
    for statement in statements():
        condition = json.dumps(statement.get("Condition", {}))
        if statement["Resource"] == "*":
            assert all(action.startswith("ec2:Describe") for action in actions(statement)), "others have resources"
        elif "ec2:TerminateInstances" in actions(statement):
            assert f'"aws:ResourceTag/{CLUSTER_TAG}": "CLUSTER_NAME"' in condition
        elif "ec2:RunInstances" in actions(statement) and any(":instance/" in each for each in statement["Resource"]):
            assert f'"aws:RequestTag/{CLUSTER_TAG}": "CLUSTER_NAME"' in condition
        elif "ec2:CreateTags" in actions(statement):
            assert '"ec2:CreateAction": "RunInstances"' in condition


def test_nothing_has_an_asterisk_for_an_action() -> None:
    assert not [action for statement in statements() for action in actions(statement) if "*" in action]
