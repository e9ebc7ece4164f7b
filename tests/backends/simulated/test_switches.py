"""The simulated backend's switches: what they take, and that nothing is changed by what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cagrpc.backends.simulated.backend import SimulatedBackend
from cagrpc.backends.simulated.behaviour import Behaviour
from cagrpc.backends.simulated.opening import Switches, configure
from cagrpc.errors import InvalidConfiguration
from tests.support.serving import Serving, configuration
from tests.support.waiting import AMPLE_SECONDS


@pytest.fixture(name="switches")
def _switches(tmp_path: Path) -> Iterator[Switches]:
    backend = SimulatedBackend(tmp_path / "simulated.sqlite")
    configured = {"*": Behaviour(boot_seconds=1.0), "gone.large": Behaviour(stock=1)}
    yield configure(backend, configured, {"m7i.large", "pool"})
    backend.close()


def test_a_behaviour_is_set_for_what_there_is_and_taken_back(switches: Switches) -> None:
    assert switches.put({"m7i.large": {"stock": 3}, "pool": {"hang": True}})["m7i.large"]["stock"] == 3
    assert switches.get().keys() == {"*", "gone.large", "m7i.large", "pool"}
    assert switches.put({"m7i.large": None, "pool": None, "*": None}).keys() == {"gone.large"}


def test_what_the_configuration_was_only_warned_of_can_be_taken_back(switches: Switches) -> None:
    assert "gone.large" not in switches.put({"gone.large": None})


@pytest.mark.parametrize(
    ("key", "why"),
    [
        pytest.param("m7i.largee", r'^"m7i.largee": is neither .* type; did you mean "m7i.large"\?', id="a slip"),
        pytest.param("\ud800", r'^"\\ud800": is neither a node group nor an instance type$', id="half a character"),
        pytest.param("", r'^"": is neither a node group nor an instance type$', id="nothing"),
        pytest.param("x" * 10**6, r'^"x{76}\.\.\.: is neither', id="endless"),
    ],
)
@pytest.mark.parametrize("value", [{"stock": 1}, None])
def test_a_key_that_is_nothings_name_is_refused_and_nothing_is_changed(
    switches: Switches, key: str, why: str, value: Any
) -> None:
    before = switches.get()
    with pytest.raises(InvalidConfiguration, match=why):
        switches.put({"pool": {"stock": 1}, key: value})
    assert switches.get() == before


def test_a_backend_out_of_reach_shows_in_health_and_readiness_alike(
    tmp_path: Path, started: Callable[..., Serving]
) -> None:
    group = {"id": "small", "allocatable": {"cpu": "2", "memory": "8Gi", "pods": 29}, "price_usd_per_hour": 0.1}
    server = started("--config", configuration(tmp_path / "c.yaml", [{"name": "one", "node_groups": [group]}]))
    credentials = grpc.ssl_channel_credentials((server.certificates / "ca.crt").read_bytes())
    with grpc.secure_channel(server.endpoints["expander"], credentials) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=AMPLE_SECONDS)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        url = f"http://{server.endpoints['http']}"
        switch = Request(f"{url}/simulation", b'{"*": {"unreachable": true}}', method="PUT")
        with urlopen(switch, timeout=AMPLE_SECONDS) as answer:
            assert answer.status == 200
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(HTTPError, match="503") as not_ready:
            urlopen(f"{url}/readyz", timeout=AMPLE_SECONDS)
        not_ready.value.close()
    assert server.stop() == 0
