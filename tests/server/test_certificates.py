"""Development certificates: made once, renewed when they must be, never over somebody else's; and what is wrong with
certificates that cannot be used, by file name.
"""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from cagrpc.cli.main import main
from cagrpc.errors import InvalidInput, shown
from cagrpc.server.certificates import ALWAYS_HOSTS, LEAF_LIFETIME, RENEW_BEFORE_EXPIRY, ensure_certificates, load

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EVERYTHING = ("ca", "server", "client")


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def files(directory: Path, name: str) -> tuple[Path, Path, Path]:
    return directory / f"{name}.crt", directory / f"{name}.key", directory / "ca.crt"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "cagrpc.kube-system.svc", "10.0.0.7"])
def test_a_client_accepts_the_server_by_every_name(host: str, tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["cagrpc.kube-system.svc", "10.0.0.7"], now=NOW)
    store = Store([certificate(tmp_path / "ca.crt")])
    builder = PolicyBuilder().store(store).time(NOW + timedelta(days=1))
    named = host[0].isalpha()
    subject = x509.DNSName(host) if named else x509.IPAddress(ipaddress.ip_address(host))
    chain = builder.build_server_verifier(subject).verify(certificate(tmp_path / "server.crt"), [])
    assert len(chain) == 2


def test_the_server_accepts_the_client(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, now=NOW)
    client = certificate(tmp_path / "client.crt")
    usage = client.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    client.verify_directly_issued_by(certificate(tmp_path / "ca.crt"))


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    assert ensure_certificates(tmp_path, ["a.example"], now=NOW) == EVERYTHING
    before = contents(tmp_path)
    assert ensure_certificates(tmp_path, ["a.example", "127.0.0.1", "0:0::1"], now=NOW) == ()
    assert contents(tmp_path) == before


def test_a_server_that_starts_adds_its_hosts_and_keeps_the_others(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["given.example"], now=NOW)
    assert ensure_certificates(tmp_path, ["127.0.0.1"], keep_hosts=True, now=NOW) == ()
    assert ensure_certificates(tmp_path, ["10.0.0.7"], keep_hosts=True, now=NOW) == ("server",)
    names = certificate(tmp_path / "server.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in names} == {*ALWAYS_HOSTS, "given.example", "10.0.0.7"}


RENEWALS: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "new hosts: the server's": ({"hosts": ["b.example"]}, ("server",)),
    "a host less: the server's": ({"hosts": []}, ("server",)),
    "a day too early: none": ({"now": NOW + LEAF_LIFETIME - RENEW_BEFORE_EXPIRY - timedelta(days=1)}, ()),
    "soon to expire: both leaves": ({"now": NOW + LEAF_LIFETIME - timedelta(days=6)}, ("server", "client")),
    "expired: both leaves": ({"now": NOW + LEAF_LIFETIME + timedelta(days=1)}, ("server", "client")),
    "the authority too: everything": ({"now": NOW + timedelta(days=3650)}, EVERYTHING),
}


@pytest.mark.parametrize(("changes", "made"), RENEWALS.values(), ids=RENEWALS)
def test_renewal(changes: dict[str, object], made: tuple[str, ...], tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["a.example"], now=NOW)
    arguments = {"hosts": ["a.example"], "now": NOW, **changes}
    assert ensure_certificates(tmp_path, **arguments) == made  # type: ignore[arg-type]
    for name in ("server", "client"):
        load(*files(tmp_path, name), now=arguments["now"])  # type: ignore[arg-type]


def test_half_written_pairs_are_made_anew(tmp_path: Path) -> None:
    """The key is written first: after a crash between the two it does not fit the certificate."""
    ensure_certificates(tmp_path, now=NOW)
    (tmp_path / "server.key").write_bytes((tmp_path / "client.key").read_bytes())
    assert ensure_certificates(tmp_path, now=NOW) == ("server",)


def test_keys_are_the_owners_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    directory = tmp_path / "new"
    ensure_certificates(directory, now=NOW)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {f"{name}.{kind}": mode for name in EVERYTHING for kind, mode in (("key", 0o600), ("crt", 0o644))}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def _foreign(directory: Path) -> None:
    other = directory / "other"
    ensure_certificates(other, now=NOW)
    for name in ("server.crt", "server.key"):
        (directory / name).write_bytes((other / name).read_bytes())


def _without_key(directory: Path) -> None:
    (directory / "ca.key").unlink()


def _no_certificate(directory: Path) -> None:
    (directory / "client.crt").write_text("hello")


REFUSALS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a certificate of another authority": (_foreign, "server.crt was not issued by the ca.crt beside it"),
    "an authority without its key": (_without_key, "ca.crt has no ca.key beside it"),
    "no certificate": (_no_certificate, "client.crt is not a PEM certificate"),
}


@pytest.mark.parametrize(("damage", "message"), REFUSALS.values(), ids=REFUSALS)
def test_what_is_not_ours_is_not_replaced(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    ensure_certificates(tmp_path, now=NOW)
    damage(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(InvalidInput, match=message):
        ensure_certificates(tmp_path, now=NOW)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


LOADS: dict[str, tuple[str, timedelta, str]] = {
    "not there": ("missing", timedelta(), "missing.crt: No such file or directory; `cagrpc certs"),
    "expired": ("server", LEAF_LIFETIME + timedelta(days=1), "server.crt expired at 2027-01-01T"),
    "not yet valid": ("server", -timedelta(days=1), "server.crt is valid only from 2025-12-31"),
}


@pytest.mark.parametrize(("name", "later", "message"), LOADS.values(), ids=LOADS)
def test_load_names_the_file(name: str, later: timedelta, message: str, tmp_path: Path) -> None:
    ensure_certificates(tmp_path, now=NOW)
    with pytest.raises(InvalidInput, match=message):
        load(*files(tmp_path, name), now=NOW + later)


def test_the_command_says_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["certs", "--dir", str(tmp_path), "--host", "a.example", "--host", "10.0.0.7"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [f"made {tmp_path}/{name}.crt and .key" for name in EVERYTHING]
    assert main(arguments) == 0
    assert "nothing was made" in capsys.readouterr().out


@pytest.mark.parametrize("host", ["bäd", "", "a b", "host:80", ".a"])
def test_a_host_that_is_none(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certs", "--dir", str(tmp_path), "--host", host]) == 2
    assert f"--host {shown(host)}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["certs", "--dir", str(tmp_path / "file")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_every_certificate_of_a_chain_has_to_be_one(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, now=NOW)
    with (tmp_path / "server.crt").open("a") as file:
        file.write("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n")
    with pytest.raises(InvalidInput, match=r"server\.crt is not a PEM certificate"):
        load(*files(tmp_path, "server"), now=NOW)
