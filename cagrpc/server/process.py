"""The process of `cagrpc serve`: settings from flags, what is printed at the start, signals, exit codes, and the replay
of `make run`. The parts are wired in `server`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cagrpc.api.core.nodes import is_of_starting
from cagrpc.config.load import load_default_settings, load_settings
from cagrpc.config.schema.listen import Address, parse_address
from cagrpc.config.settings import Settings
from cagrpc.controllers.settings import Drive, ExpanderMode
from cagrpc.durations import seconds_of_flag
from cagrpc.errors import CagrpcError, InvalidInput, unexpected
from cagrpc.fleet.provisioners import startup_taints
from cagrpc.output import complain, say, warn
from cagrpc.replay.recorder import Recorder
from cagrpc.replay.recording import Call, read_recording
from cagrpc.replay.report import print_report
from cagrpc.replay.sockets import Interrupted, replay_over_sockets
from cagrpc.runtime import tracing
from cagrpc.server import logs
from cagrpc.server.certificates import host_of, load
from cagrpc.server.server import JOURNAL, Endpoints, Server, make_state_directory
from cagrpc.server.tls import WILDCARDS, in_state_directory
from cagrpc.tables import console

if TYPE_CHECKING:
    from cagrpc.demonstration.cluster import PlayedCluster

log = logging.getLogger(__name__)

EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2
SETTLE_SECONDS = 30.0
END_SECONDS = 30.0
"""A process that must end exits after so long even if threads hang, with a traceback of them all."""
_LOOK_SECONDS = 1.0
"""How often it is looked whether a signal has come: one that comes just before a wait begins does not end it."""
ENDPOINTS = "endpoints.json"
CLOUD_CONFIG = "cloud-config.yaml"
OF_DEMONSTRATION = "demonstration"
"""An empty file in the state directory of a demonstration."""
DEMONSTRATION = """\
This is a demonstration: a small cluster is played in memory; cagrpc plans, orders and consolidates its nodes.
Open {page}: pods wait and are told why, a machine type is sold out, a training job gets all of its nodes or none.
Next, plan for your own cluster without touching it: see `cagrpc plan --help`."""


def serve(options: argparse.Namespace) -> int:
    """Serve until SIGTERM (exit 0) or SIGINT (130); with --once until the replay is done. Return the exit code."""
    if options.once and not options.replay:
        raise InvalidInput("serve: --once stops after the replay; give --replay as well")
    if options.demonstration and (options.config or options.replay):
        raise InvalidInput("serve: --demonstration plays a cluster of its own; leave out --config and --replay")
    logs.set_up(options.log_level)
    settings = settings_from(options)
    with _tracing(settings):
        return _serve(options, settings)


def _serve(options: argparse.Namespace, settings: Settings) -> int:
    calls = read_recording(options.replay) if options.replay else ()
    warn(*settings.warnings)
    recorder = Recorder(options.record) if options.record else None
    stopping, signals = threading.Event(), list[int]()
    with _signals(stopping, signals):
        try:
            played = _played(settings.state_directory) if options.demonstration else None
            server = Server(settings, recorder, stopping.set, played)
            if played is not None:
                server.play(played)
        except CagrpcError as error:  # also a port or a state directory in use by another process
            for line in str(error).splitlines():
                complain(line)
            return EXIT_WRONG_INPUT
        try:
            with _fail_on_uncaught(server.fail):
                server.start()
                announce(settings, server.endpoints, console(), demonstration=options.demonstration)
                code = _replay(options.replay, calls, settings, server, stopping) if calls else 0
                if not options.once:
                    say("serving; stop with Ctrl-C", flush=True)
                    while not stopping.wait(_LOOK_SECONDS):
                        pass
        finally:
            if server.failure:  # what hangs may also block `stop`
                faulthandler.dump_traceback_later(END_SECONDS, exit=True)
            server.stop()
            if recorder is not None:
                recorder.close()
            (settings.state_directory / ENDPOINTS).unlink(missing_ok=True)
    if server.failure:
        complain(server.failure)
        return EXIT_FAILED
    if signals:
        return 128 + signals[0] if signals[0] == signal.SIGINT else 0
    return code if options.once else 0


@contextmanager
def _tracing(settings: Settings) -> Iterator[None]:
    """Trace as configured. Raises InvalidInput where that cannot be."""
    if not settings.tracing:
        yield
        return
    try:
        from cagrpc.server import opentelemetry  # noqa: PLC0415 - it imports what is optional
    except ImportError as error:
        raise InvalidInput(
            f"tracing: found true, but OpenTelemetry is not installed ({error}); pip install 'cagrpc[tracing]', or set"
            " tracing: false"
        ) from error
    tracer = opentelemetry.to_collector(socket.gethostname())
    tracing.use(tracer)
    try:
        yield
    finally:
        tracing.use(None)
        tracer.stop()


def settings_from(options: argparse.Namespace) -> Settings:
    """Return the configuration with the overrides of flags. Raises InvalidInput."""
    name = "demonstration" if options.demonstration else "default"
    settings = load_settings(options.config) if options.config else load_default_settings(Path(), name)
    if options.state_dir:
        tls = in_state_directory(settings.tls, settings.state_directory, options.state_dir)
        settings = replace(settings, state_directory=options.state_dir, tls=tls)
    if options.ephemeral_ports:
        free = Address("127.0.0.1", 0)
        settings = replace(settings, provider=settings.provider and free, expander=free, http=free)
    if options.booking is not None:
        if settings.requests is None:
            raise InvalidInput(
                "--booking: the configuration serves no ProvisioningRequests; they need the section kubernetes"
            )
        settings = replace(
            settings, requests=replace(settings.requests, booking_seconds=seconds_of_flag(options.booking, "--booking"))
        )
    if options.provider_address and settings.provider is None:
        raise InvalidInput("--provider-address: the configuration has provider: {enabled: false}")
    return replace(
        settings,
        provider=settings.provider and _address(options.provider_address, "--provider-address", settings.provider),
        expander=_address(options.expander_address, "--expander-address", settings.expander),
        http=_address(options.http_address, "--http-address", settings.http),
    )


def _address(text: str | None, flag: str, otherwise: Address) -> Address:
    return parse_address(text, flag) if text else otherwise


def _played(directory: Path) -> PlayedCluster:
    """Return the demonstration's cluster. Raises InvalidInput where the state directory is another server's, whose
    machines would be taken for the demonstration's."""
    from cagrpc.demonstration.cluster import PlayedCluster  # noqa: PLC0415 - a server without it does not import it

    make_state_directory(directory)
    mark = directory / OF_DEMONSTRATION
    if (directory / JOURNAL).exists() and not mark.exists():
        raise InvalidInput(f"--state-dir {directory}: belongs to another server; --demonstration takes one of its own")
    mark.touch()
    return PlayedCluster()


def announce(settings: Settings, endpoints: Endpoints, out: Console, *, demonstration: bool = False) -> None:
    """Print the endpoints and the cluster-autoscaler's flags, or what a demonstration shows; write cloud-config.yaml
    and endpoints.json."""
    state = settings.state_directory.resolve()
    scheme = "https" if settings.http_is_secured else "http"
    if demonstration:
        page = f"{scheme}://{endpoints.http}/"
        out.print(DEMONSTRATION.format(page=page), highlight=False, soft_wrap=True)
        sys.stdout.flush()
        (state / ENDPOINTS).write_text(json.dumps({**asdict(endpoints), "pid": os.getpid()}) + "\n")
        return
    if endpoints.provider:
        out.print(f"provider  {endpoints.provider}")
    out.print(f"expander  {endpoints.expander}")
    out.print(f"page      {scheme}://{endpoints.http}/")
    out.print(f"http      {scheme}://{endpoints.http}/metrics, /decisions, /increments, /healthz, /readyz")
    grpc_expander = [
        f"--grpc-expander-url={_called_at(settings, settings.expander, endpoints.expander)}",
        f"--grpc-expander-cert={_client_file(settings, 'ca.crt')}",
    ]
    if endpoints.provider:
        cloud_config = _cloud_config(settings, endpoints)
        (state / CLOUD_CONFIG).write_text(cloud_config)
        flags = ["--cloud-provider=externalgrpc", f"--cloud-config={state / CLOUD_CONFIG}", "--expander=grpc"]
        starting = sorted({taint.key for taint in startup_taints(settings.provisioners) if not is_of_starting(taint)})
        flags += [
            *grpc_expander,
            "--balance-similar-node-groups=false",
            *(f"--startup-taint={key}" for key in starting),
        ]
        _print_flags(out, "these flags", *flags)
        out.print(f"\nand this cloud-config ({state / CLOUD_CONFIG}):", style="bold")
        out.print("\n".join(f"  {line}" for line in cloud_config.splitlines()))
        alone = (
            "One with a cloud provider of its own takes --expander=grpc,least-waste and the two --grpc-expander flags."
        )
        out.print(f"\n{alone}\n")
    else:
        shadow = settings.answers.mode is ExpanderMode.SHADOW
        first = "--expander=grpc,EXPANDERS_OF_TODAY" if shadow else "--expander=grpc,least-waste"
        _print_flags(out, "these flags beside those of its cloud provider", first, *grpc_expander)
        out.print()
    if settings.drive is Drive.ASSIST:
        out.print("From 1.36 on, --salvo-scale-up lets it make several choices in one loop.\n")
    sys.stdout.flush()
    # Last: once it exists, everything else is done.
    (state / ENDPOINTS).write_text(json.dumps({**asdict(endpoints), "pid": os.getpid()}) + "\n")


def _print_flags(out: Console, which: str, *flags: str) -> None:
    out.print(f"\nGive the cluster-autoscaler {which}:", style="bold")
    out.print("\n".join(f"  {flag}" for flag in flags))


def _cloud_config(settings: Settings, endpoints: Endpoints) -> str:
    lines = {"address": _called_at(settings, settings.provider, endpoints.provider)}
    if settings.tls is not None:
        names = {"cert": "client.crt", "key": "client.key", "cacert": "ca.crt"}
        lines |= {field: _client_file(settings, name) for field, name in names.items()}
    return "".join(f"{field}: {json.dumps(value)}\n" for field, value in lines.items())


def _called_at(settings: Settings, listening: Address | None, reached: str) -> str:
    """Return the address for the cluster-autoscaler: of a server that listens on all addresses its certificate's name,
    which is what the autoscaler compares with."""
    if listening is None or listening.host not in WILDCARDS or settings.tls is None:
        return reached
    host = host_of(settings.tls.certificate)
    return reached if host is None else f"{host}:{reached.rpartition(':')[2]}"


def _client_file(settings: Settings, name: str) -> str:
    """Return the path of a client's file; only a directory of `cagrpc certs` has them."""
    if settings.tls is None or settings.tls.directory is None:
        return f"PATH/TO/{name}"
    return str((settings.tls.directory / name).resolve())


def _replay(name: str, calls: tuple[Call, ...], settings: Settings, server: Server, stopping: threading.Event) -> int:
    if settings.provider is None:
        raise InvalidInput("serve --replay: needs the provider, which the configuration leaves out")
    if settings.tls is None or settings.tls.directory is None:
        raise InvalidInput("serve --replay: needs the client's certificate, in a directory as `cagrpc certs` makes it")
    files = load(*(settings.tls.directory / each for each in ("client.crt", "client.key", "ca.crt")))
    try:
        replay = replay_over_sockets(
            name,
            calls,
            server.endpoints.provider,
            server.endpoints.expander,
            files,
            settle_seconds=SETTLE_SECONDS,
            stopping=stopping,
            pass_time=server.pass_time,
        )
    except Interrupted:
        return 1
    print_report(replay, console())
    return 0 if replay.good else 1


@contextmanager
def _fail_on_uncaught(fail: Callable[[str], None]) -> Iterator[None]:
    """Call `fail` when a thread ends by an uncaught exception, since nothing else does its work."""

    def died(seen: threading.ExceptHookArgs) -> None:
        name = seen.thread.name if seen.thread is not None else "unknown"
        log.critical("the thread %s ended unexpectedly", name, exc_info=seen.exc_value or True)
        fail(f"the thread {name} ended unexpectedly: {unexpected(seen.exc_value or seen.exc_type())}")

    before, threading.excepthook = threading.excepthook, died
    try:
        yield
    finally:
        threading.excepthook = before


@contextmanager
def _signals(stopping: threading.Event, received: list[int]) -> Iterator[None]:
    """Stop gracefully at SIGTERM and SIGINT; a second one has its default effect."""

    def stop(number: int, _: object) -> None:
        received.append(number)
        stopping.set()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
