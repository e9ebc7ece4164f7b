"""The client over real sockets: mTLS with certificates that are replaced, deadlines, and several providers at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from cagrpc import errors
from cagrpc.api.encoding.certificates import chain_lifetime
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.backends.externalgrpc.backend import opened_over
from cagrpc.backends.externalgrpc.client import SERVICE, Channel, ProviderClient
from cagrpc.backends.externalgrpc.plugin import ClientTls, ProviderAccess
from cagrpc.backends.plugin import BackendContext
from cagrpc.fleet.backend import Order, OrderedInstance
from cagrpc.fleet.backend_records import BackendRecords
from cagrpc.runtime.clock import EpochSeconds, epoch
from solver.model import NodeGroup
from tests.support.certificates import Authority
from tests.support.fleet import FakeClock, MemoryJournal, group
from tests.support.played_provider import FaultyChannel, Habits, PlayedProvider


@contextmanager
def served(authority: Authority | None, answers: Callable[[str], bytes]) -> Iterator[int]:
    """Answer every call with the bytes for its method; yield the port."""

    methods = {
        name: grpc.unary_unary_rpc_method_handler(lambda *_, name=name: answers(name))
        for name in ("Refresh", "NodeGroups", "NodeGroupIncreaseSize")
    }
    server = grpc.server(ThreadPoolExecutor(2), handlers=[grpc.method_handlers_generic_handler(SERVICE, methods)])
    if authority is None:
        port = server.add_insecure_port("localhost:0")
    else:
        certificate, key = authority.issue("provider", x509.DNSName("localhost"))
        credentials = grpc.ssl_server_credentials([(key, certificate)], authority.certificate, require_client_auth=True)
        port = server.add_secure_port("localhost:0", credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def groups_answer(method: str) -> bytes:
    if method == "NodeGroups":
        return pb.NodeGroupsResponse(nodeGroups=[pb.NodeGroup(id="a", maxSize=3)]).SerializeToString()
    return b""


def written(directory: Path, authority: Authority) -> ClientTls:
    certificate, key = authority.issue("cagrpc")
    for name, content in {"tls.crt": certificate, "tls.key": key, "ca.crt": authority.certificate}.items():
        (directory / name).write_bytes(content)
    return ClientTls(directory / "tls.crt", directory / "tls.key", directory / "ca.crt")


def test_certificates_are_read_again_when_they_are_replaced(tmp_path: Path) -> None:
    first, second = Authority("first"), Authority("second")
    with served(second, groups_answer) as port:
        tls = written(tmp_path, first)
        access = ProviderAccess(f"localhost:{port}", tls=tls)
        channel = Channel(access.address, tls)
        client = ProviderClient(access, channel)
        with pytest.raises(errors.Unavailable, match=access.address):
            client.groups()
        written(tmp_path, second)
        assert [each.id for each in client.groups()] == ["a"]
        channel.close()


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
@pytest.mark.parametrize("halfway", [None, b"", b"-----BEGIN", "of another"])
def test_the_connection_stays_until_new_files_fit_together(
    name: str, halfway: bytes | str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority("first")
    if (name, halfway) == ("ca.crt", "of another"):
        pytest.skip("another authority fits by itself")
    with served(authority, groups_answer) as port:
        tls = written(tmp_path, authority)
        access = ProviderAccess(f"localhost:{port}", tls=tls)
        channel = Channel(access.address, tls)
        client = ProviderClient(access, channel)
        client.refresh()
        if isinstance(halfway, str):
            certificate, key = authority.issue("cagrpc")
            (tmp_path / name).write_bytes(certificate if name == "tls.crt" else key)
        elif halfway is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_bytes(halfway)
        for _ in range(2):
            assert [each.id for each in client.groups()] == ["a"]
        (message,) = caplog.messages
        assert name in message
        assert message.endswith("the certificates in use stay")
        written(tmp_path, authority)
        client.refresh()
        channel.close()


def test_certificates_that_expire_soon_are_logged_once_and_again_after_they_were_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority("first")
    tls = written(tmp_path, authority)
    expires = chain_lifetime(tls.certificate, tls.certificate.read_bytes()).expires.timestamp()
    now = [epoch()]
    with served(authority, groups_answer) as port:
        channel = Channel(f"localhost:{port}", tls, lambda: now[0])
        client = ProviderClient(ProviderAccess(f"localhost:{port}", tls=tls), channel)
        client.refresh()
        assert not caplog.messages
        now[0] = EpochSeconds(expires - 60.0)
        for _ in range(2):
            client.refresh()
        assert any("tls.crt expires at" in each for each in caplog.messages)
        assert len(set(caplog.messages)) == len(caplog.messages)
        seen = len(caplog.messages)
        written(tmp_path, authority)
        client.refresh()
        assert len(caplog.messages) == 2 * seen
        channel.close()


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    tls = ClientTls(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt")
    client = ProviderClient(ProviderAccess("10.0.0.1:8086", tls=tls), Channel("10.0.0.1:8086", tls))
    with pytest.raises(errors.Unavailable, match=r"ca\.crt: No such file"):
        client.refresh()


def test_a_provider_that_does_not_answer_is_given_up_after_the_timeout() -> None:
    release = threading.Event()

    def silent(_: str) -> bytes:
        release.wait(10.0)
        return b""

    with served(None, silent) as port:
        access = ProviderAccess(f"localhost:{port}", timeout_seconds=0.2, order_timeout_seconds=0.2)
        channel = Channel(access.address, None)
        client = ProviderClient(access, channel)
        with pytest.raises(errors.Unavailable, match="Refresh: DEADLINE_EXCEEDED"):
            client.refresh()
        with pytest.raises(errors.Unavailable, match="NodeGroupIncreaseSize: DEADLINE_EXCEEDED"):
            client.increase("a", 1)
        release.set()
        channel.close()


def test_what_is_no_answer_of_the_protocol_is_out_of_reach() -> None:
    with served(None, lambda _: b"\xff\xff") as port:
        access = ProviderAccess(f"localhost:{port}")
        channel = Channel(access.address, None)
        with pytest.raises(errors.Unavailable, match="Refresh: these 2 bytes"):
            ProviderClient(access, channel).groups()
        channel.close()


class TwoClouds:
    """A backend over two providers."""

    def __init__(self, first: tuple[str, ...], second: tuple[str, ...]) -> None:
        self.clock = FakeClock()
        self.providers = [PlayedProvider(self.clock, Habits(), *names) for names in (first, second)]
        self.channels = [FaultyChannel(each, self.clock) for each in self.providers]
        clients = [
            ProviderClient(ProviderAccess(f"localhost:{n}", name=f"cloud-{n}"), channel)
            for n, channel in enumerate(self.channels, 1)
        ]
        self.backend = opened_over(clients, BackendContext(Path(), self.clock, records=BackendRecords(MemoryJournal())))

    def order(self, *groups: NodeGroup) -> None:
        instances = tuple(OrderedInstance(f"0123456789ab-{each.id}-1", each, 0) for each in groups)
        self.backend.order(Order("0123456789ab", instances, frozenset(each.token for each in instances)))

    def listed(self) -> set[str]:
        return {each.token for each in self.backend.list_instances().instances}


def test_an_increment_spans_two_clouds() -> None:
    clouds = TwoClouds(("a",), ("b",))
    assert clouds.listed() == set()
    assert [each.id for each in clouds.backend.node_groups()] == ["a", "b"]
    clouds.order(group("a"), group("b"))
    assert clouds.listed() == {"0123456789ab-a-1", "0123456789ab-b-1"}
    assert [len(each.standing()) for each in clouds.providers] == [1, 1]


def test_a_cloud_out_of_reach_does_not_hold_up_the_other() -> None:
    clouds = TwoClouds(("a",), ("b",))
    clouds.listed()
    clouds.order(group("b"))
    clouds.channels[1].is_cut = True
    assert clouds.listed() == {"0123456789ab-b-1"}, "as it was listed last"
    assert "cloud-2: Refresh: UNAVAILABLE" in (clouds.backend.problem or "")
    clouds.order(group("a"))
    with pytest.raises(errors.Unavailable, match="cloud-2"):
        clouds.order(group("b", max_size=3), group("a"))
    assert len(clouds.providers[0].standing()) == 1
    clouds.channels[0].is_cut = True
    with pytest.raises(errors.Unavailable, match="cloud-1"):
        clouds.listed()


def test_a_group_that_two_clouds_have_is_the_first_ones(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clouds = TwoClouds(("a",), ("a", "b"))
    clouds.listed()
    clouds.order(group("a"))
    assert [len(each.standing()) for each in clouds.providers] == [1, 0]
    assert "cloud-1 has a node group of this id, too" in caplog.text


@pytest.mark.parametrize("code", [grpc.StatusCode.UNKNOWN, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_errors_are_told_with_the_group_and_its_provider(code: grpc.StatusCode) -> None:
    clouds = TwoClouds(("a",), ("b",))
    clouds.providers[0].groups["a"].refusal = (code, "ZONE_RESOURCE_POOL_EXHAUSTED")
    with pytest.raises(errors.OutOfCapacity, match=f"node group a: provider cloud-1: {code.name}") as raised:
        clouds.order(group("a"))
    assert raised.value.node_groups == ("a",)
