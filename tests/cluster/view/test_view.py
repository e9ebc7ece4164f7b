"""The view before it knows the cluster. How it follows a real one is in tests/controlplane."""

from __future__ import annotations

import pytest

from cagrpc.cluster.view.view import ClusterView
from cagrpc.errors import Unavailable
from tests.support.scripted_api import fake_api


def test_what_is_not_known_yet_is_not_guessed() -> None:
    with fake_api() as api:
        client = api.client()
        view = ClusterView(client)
        assert view.problem == "the list of nodes is still to come"
        for ask in (view.state, view.ready_instances, view.held_nodes):
            with pytest.raises(Unavailable, match="still to come"):
                ask()
        assert view.arrivals().waiting == 0
        assert view.pod_of("p") is None
        view.stop()
        client.close()


def test_what_is_not_followed_is_not_late() -> None:
    with fake_api() as api:
        client = api.client()
        view = ClusterView(client)
        (nodes,) = (each for each in view.informers() if each.name == "nodes")
        nodes.synced = True
        assert view.ready_instances() == frozenset()
        nodes.problem = "it cannot be reached"
        with pytest.raises(Unavailable, match="it cannot be reached"):
            view.ready_instances()
        client.close()
