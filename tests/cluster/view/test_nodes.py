"""What is made anew of nodes when a few objects have changed."""

from __future__ import annotations

import pytest

from cagrpc.cluster.state import ClusterNode
from cagrpc.cluster.view import nodes as module
from cagrpc.cluster.view.model import NODES
from tests.support.controllers.cluster_objects import Fed, apart, comparable, node, pod, spread

_NAMES = tuple(f"n{number}" for number in range(6))


def _cluster() -> Fed:
    """Two pods on each node, of `web` on even ones and `db` on odd ones, and one that nobody's constraints name."""
    fed = Fed()
    fed.nodes(*map(node, _NAMES))
    for number, name in enumerate(_NAMES):
        app = "db" if number % 2 else "web"
        fed.put(pod(f"{app}-{name}", node=name, labels={"app": app}), pod(f"other-{name}", node=name))
    return fed


def _anew(before: tuple[ClusterNode, ...], after: tuple[ClusterNode, ...]) -> list[str]:
    same = {id(each) for each in before}
    return [each.node.name for each in after if id(each) not in same]


def test_nodes_that_have_not_changed_are_the_same_objects() -> None:
    fed = _cluster()
    first = fed.state().nodes
    assert fed.state().nodes is first
    fed.nodes(node("n2"))  # a heartbeat
    assert fed.state().nodes is first
    fed.put(pod("new", node="n3"))
    second = fed.state().nodes
    assert _anew(first, second) == ["n3"]
    fed.nodes(node("n1", "16"), node("n15"))
    fed.drop(node("n4"), path=NODES)
    third = fed.state().nodes
    assert _anew(second, third) == ["n1", "n15"]
    assert [each.node.name for each in third] == ["n0", "n1", "n15", "n2", "n3", "n5"]


def test_a_new_selector_makes_the_nodes_anew_whose_pods_it_can_select() -> None:
    fed = _cluster()
    fed.put(pod("one of them", node="n5", labels={"app": "web"}, **spread("web")))
    first = fed.state().nodes
    fed.put(pod("waits", labels={"app": "web"}, **spread("web")))
    second = fed.state().nodes
    assert _anew(first, second) == ["n0", "n2", "n4", "n5"]
    assert [sum(run.count for run in each.node.running) for each in second] == [1, 0, 1, 0, 1, 1]
    fed.put(pod("waits too", labels={"app": "web"}, **spread("web")))
    assert fed.state().nodes is second
    fed.drop(pod("waits"), pod("waits too"))
    third = fed.state().nodes
    assert _anew(second, third) == ["n0", "n2", "n4", "n5"]
    assert [each.node.running for each in third] == [each.node.running for each in first]


def test_anti_affinity_of_bound_pods_is_shown_once_a_pod_waits_that_it_selects() -> None:
    fed = _cluster()
    fed.put(pod("keeps apart", node="n5", labels={"app": "db"}, **apart("batch")))
    first = fed.state().nodes
    fed.put(pod("waits", labels={"app": "batch"}))
    second = fed.state().nodes
    assert _anew(first, second) == ["n5"]
    assert [run.spec.pod_anti_affinity != () for run in second[5].node.running] == [True]


def test_what_fails_has_all_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = _cluster()
    fed.state()
    fed.put(pod("new", node="n3"), pod("waits", labels={"app": "web"}, **spread("web")))

    def fails(*_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as broken:
        broken.setattr(module, "left", fails)
        with pytest.raises(RuntimeError):
            fed.state()
    expected = _cluster()
    expected.put(pod("new", node="n3"), pod("waits", labels={"app": "web"}, **spread("web")))
    assert comparable(fed.state()) == comparable(expected.state())


def test_a_standby_that_shows_no_nodes_forgets_those_that_are_gone() -> None:
    fed = Fed()
    for number in range(100):
        fed.nodes(node(f"n{number}"))
        fed.put(pod("p", node=f"n{number}"))
        fed.drop(pod("p"))
        fed.drop(node(f"n{number}"), path=NODES)
    assert not any(fed.leftovers())
