"""A leader whose node is cordoned hands over, once; who starts on such a node stays."""

from __future__ import annotations

import pytest

from cagrpc.server.standby import OwnNode


def test_it_is_told_once_each_time_that_the_node_is_cordoned() -> None:
    cordoned: set[str] = set()
    node = OwnNode("one", cordoned.__contains__)
    assert not node.leaving()
    cordoned.add("two")
    assert not node.leaving()
    cordoned.add("one")
    assert node.leaving() == "the node one was cordoned: a standby takes over"
    assert not node.leaving()
    cordoned.remove("one")
    assert not node.leaving()
    cordoned.add("one")
    assert node.leaving()


def test_who_starts_on_a_cordoned_node_stays() -> None:
    node = OwnNode("one", lambda _: True)
    assert not node.leaving()
    assert not node.leaving()


def test_without_a_name_nothing_is_asked() -> None:
    node = OwnNode("", lambda name: pytest.fail(f"asked about {name!r}"))
    assert not node.leaving()
