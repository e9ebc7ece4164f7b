"""One choice for pods that arrive together: what the expander lets the autoscaler wait for, and for how long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cagrpc.api.gen import expander_pb2, kubernetes_pb2
from cagrpc.controllers.settings import AnswerRules, BatchSettings, ExpanderMode
from cagrpc.fleet.catalogue import embedded_catalogue
from cagrpc.fleet.model import IncrementSpec, Origin
from cagrpc.services.grpc.template_groups import TemplateGroups
from tests.services.grpc.test_template_groups import LARGE, M7, answered
from tests.support.fleet import FleetHarness, group
from tests.support.grpc_servers import House, asking, option, pod

IDLE, WINDOW = 2.0, 30.0
BATCH = BatchSettings(IDLE, WINDOW)


def house_of(rules: AnswerRules) -> House:
    templates = TemplateGroups(catalogue=embedded_catalogue())
    options = {"templates": templates, "answers": rules, "serves_requests": False}
    return House(FleetHarness(groups=[group("ours"), group("other", price=9.0)]), expander_options=options)


@pytest.fixture
def house() -> Iterator[House]:
    with house_of(AnswerRules(batch=BATCH)) as found:
        yield found


def created(name: str, at_seconds: float) -> bytes:
    message = kubernetes_pb2.Pod.FromString(pod(name))
    message.metadata.creationTimestamp.seconds = int(at_seconds)
    return message.SerializeToString()


def ask(house: House, names: str, *, age: float = 0.0, older: bool = False) -> list[str]:
    """Ask about pods of these names, of which the youngest is so old."""
    pods = [created(name, house.harness.clock.now - age) for name in names]
    request = asking(option("eks-large", 1, pods), option("eks-small", 1, pods))
    (request.nodeMap if older else request.nodeBytesMap).update({"eks-large": LARGE, "eks-small": M7})
    return answered(house, request)


def test_it_waits_until_no_pod_has_come_for_a_while(house: House) -> None:
    house.harness.clock.now = 1_000.0
    assert ask(house, "a") == []
    (decision,) = house.decisions.latest()
    assert decision.reason == "waits for more pods: 1 pod came just now; for 30 s at most"
    house.harness.clock.advance(10)
    assert ask(house, "abc", age=IDLE - 1) == []
    house.harness.clock.advance(10)
    assert ask(house, "abc", age=IDLE) == ["eks-small"]


def test_pods_that_have_waited_already_wait_no_longer(house: House) -> None:
    house.harness.clock.now = 1_000.0
    assert ask(house, "a", age=IDLE) == ["eks-small"]


def test_it_waits_no_longer_than_the_window(house: House) -> None:
    house.harness.clock.now = 1_000.0
    for number in range(3):
        assert ask(house, "abc"[: number + 1]) == []
        house.harness.clock.advance(10)
    assert ask(house, "abcd") == ["eks-small"]


def test_while_pods_of_a_batch_are_left_nobody_waits_for_others(house: House) -> None:
    """One option is carried out in each loop, so a batch takes some loops; new pods come meanwhile."""
    house.harness.clock.now = 1_000.0
    assert ask(house, "ab", age=IDLE) == ["eks-small"]
    house.harness.clock.advance(10)
    assert ask(house, "bc") == ["eks-small"]
    house.harness.clock.advance(10)
    assert ask(house, "cd") == []


def test_who_asks_beside_makes_nobody_wait_longer(house: House) -> None:
    """Another autoscaler, whose pods have waited already, asks between two loops of the first."""
    house.harness.clock.now = 1_000.0
    answers = []
    for number in range(4):
        answers.append(ask(house, "abcdefg"[: number + 1]))
        house.harness.clock.advance(5)
        assert ask(house, "xyz"[number % 3], age=IDLE) == ["eks-small"]
        house.harness.clock.advance(5)
    assert answers == [[], [], [], ["eks-small"]]


def test_pods_that_were_deleted_are_no_reason_not_to_wait_for_others(house: House) -> None:
    house.harness.clock.now = 1_000.0
    assert ask(house, "a") == []
    house.harness.clock.advance(3_600)
    assert ask(house, "bc") == []


def test_pods_of_a_provisioning_request_are_all_there(house: House) -> None:
    house.harness.clock.now = 1_000.0
    message = kubernetes_pb2.Pod.FromString(created("a", 1_000.0))
    message.metadata.annotations["autoscaling.x-k8s.io/consume-provisioning-request"] = "r"
    request = asking(option("eks", 1, [message.SerializeToString()]))
    request.nodeBytesMap["eks"] = M7
    assert answered(house, request) == ["eks"]


@pytest.mark.parametrize(
    ("rules", "older", "waits"),
    [
        pytest.param(AnswerRules(batch=BATCH), True, False, id="an autoscaler that may be as old as 1.31"),
        pytest.param(AnswerRules(batch=BATCH, knows_vetoes=True), True, True, id="one that is said to be newer"),
        pytest.param(AnswerRules(), False, False, id="as it is by default"),
    ],
)
def test_only_who_knows_vetoes_is_let_wait(rules: AnswerRules, older: bool, waits: bool) -> None:
    with house_of(rules) as house:
        assert ask(house, "a", older=older) == ([] if waits else ["eks-small"])


def test_in_shadow_nobody_waits() -> None:
    with house_of(AnswerRules(ExpanderMode.SHADOW, batch=BATCH)) as house:
        assert ask(house, "a") == ["eks-large", "eks-small"]


def test_options_of_our_own_fleet_wait_too(house: House) -> None:
    house.harness.clock.now = 1_000.0
    request = asking(option("ours", 1, [created("a", 1_000.0)]))
    request.nodeBytesMap["eks"] = M7
    assert answered(house, request) == []
    house.harness.clock.advance(WINDOW)
    assert answered(house, request) == ["ours"]


def test_an_option_that_counts_pods_again_waits_for_their_nodes_and_others_do_not(house: House) -> None:
    """The autoscaler's estimate would be for the pods that are served as well."""
    clock = house.harness.clock
    clock.now = 1_000.0
    old, new = created("a", clock.now - IDLE), created("b", clock.now - IDLE)
    house.fleet.apply(IncrementSpec({"ours": 1}, Origin.AUTOSCALER, frozenset({"uid-a"})))

    def asked(*options: expander_pb2.Option) -> list[str]:
        request = asking(*options)
        request.nodeBytesMap["eks"] = M7
        return answered(house, request)

    assert asked(option("ours", 2, [old, new])) == []
    assert house.decisions.latest()[-1].options[0].left_out == (
        "counts 1 pod for which nodes are already on their way; it waits for them, for 28 s at most"
    )
    assert asked(option("ours", 2, [old, new]), option("other", 1, [new])) == ["other"]
    clock.advance(WINDOW - IDLE)
    assert asked(option("ours", 2, [old, new])) == ["ours"]
