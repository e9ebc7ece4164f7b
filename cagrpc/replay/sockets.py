"""Replays a recorded conversation over real sockets, connected as the cluster-autoscaler does: mTLS to the provider,
TLS of the server alone to the expander. Sending and comparing is in `conversation`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from cagrpc.errors import Unavailable
from cagrpc.replay.conversation import Answer, Conversation, Replay, Send
from cagrpc.replay.recording import EXPANDER, PROVIDER, Call
from cagrpc.services.tls import TlsMaterial
from cagrpc.tables import console

CALL_SECONDS = 5.0
"""CA's fixed timeout of BestOptions, and its default for every call of the provider."""
CONNECT_SECONDS = 5.0


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """The replay was asked to stop."""


def replay_over_sockets(
    name: str,
    calls: tuple[Call, ...],
    provider: str,
    expander: str,
    files: TlsMaterial,
    *,
    settle_seconds: float,
    stopping: threading.Event | None = None,
    pass_time: Callable[[float], None] | None = None,
) -> Replay:
    """Connect, replay, disconnect. `pass_time` makes it so many seconds later for the server, where that can be done;
    otherwise they are waited. Raises Unavailable where a server does not respond, Interrupted once `stopping` is
    set."""
    stop = stopping or threading.Event()

    def sleep(seconds: float) -> None:
        if pass_time is not None:
            pass_time(seconds)
        if stop.wait(seconds if pass_time is None else 0.0):
            raise Interrupted

    with _senders(provider, expander, files) as send, _progress(name, len(calls)) as show:

        def progress(sent: int) -> None:
            show(sent)
            if stop.is_set():
                raise Interrupted

        return Conversation(
            Path(name).name,
            calls,
            send,
            clock=time.monotonic,
            sleep=sleep,
            settle_seconds=settle_seconds,
            progress=progress,
        ).run()


@contextmanager
def _senders(provider: str, expander: str, files: TlsMaterial) -> Iterator[Send]:
    mutual = grpc.ssl_channel_credentials(files.authority, files.key, files.certificate)
    server_only = grpc.ssl_channel_credentials(files.authority)
    with (
        grpc.secure_channel(provider, mutual) as to_provider,
        grpc.secure_channel(expander, server_only) as to_expander,
    ):
        for channel, service, address in ((to_provider, "provider", provider), (to_expander, "expander", expander)):
            _connect(channel, service, address)
        channels = {PROVIDER.full_name: to_provider, EXPANDER.full_name: to_expander}
        yield _sender(channels)


def _connect(channel: grpc.Channel, service: str, address: str) -> None:
    try:
        grpc.channel_ready_future(channel).result(timeout=CONNECT_SECONDS)
    except grpc.FutureTimeoutError as error:
        raise Unavailable(
            f"no {service} answers at {address} within {CONNECT_SECONDS:.0f} s, or it does not accept these"
            " certificates; is `cagrpc serve` running, and are --certs its own?"
        ) from error


def _sender(channels: Mapping[str, grpc.Channel]) -> Send:
    """Return a `Send` over the channels of the services."""
    callables: dict[str, Callable[..., bytes]] = {}

    def send(full_method: str, request: bytes) -> Answer:
        call = callables.get(full_method)
        if call is None:
            service = full_method.split("/")[1]
            call = callables[full_method] = channels[service].unary_unary(full_method, None, None)
        try:
            return Answer("OK", call(request, timeout=CALL_SECONDS))
        except grpc.RpcError as error:  # also a grpc.Call, which the stubs omit
            return Answer(error.code().name, message=error.details() or "")

    return send


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a callback for a progress bar on stderr, shown on a terminal."""
    columns = (TextColumn("replaying {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(Path(name).name, total=total)

        def sent(count: int) -> None:
            progress.update(task, completed=count)

        yield sent
