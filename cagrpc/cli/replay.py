"""`cagrpc replay`: see `cagrpc.replay`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cagrpc.cli import flags

SUMMARY = "send a recorded conversation of a cluster-autoscaler to running servers and compare"
DETAILS = "Instances are matched in order of creation. Exits 1 when a request is not answered as recorded."
EXAMPLES = (
    "cagrpc replay three-deployments",
    "cagrpc replay recording.jsonl.gz --provider localhost:8086 --expander localhost:8087 --certs certs",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recording", metavar="RECORDING", help="a .jsonl.gz file, or the name of an embedded recording")
    parser.add_argument("--provider", default="127.0.0.1:8086", metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument("--expander", default="127.0.0.1:8087", metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument(
        "--certs",
        type=Path,
        default=flags.DEFAULT_CERTIFICATES_DIR,
        metavar="DIR",
        help="holds ca.crt, client.crt and client.key (default: %(default)s)",
    )
    parser.add_argument(
        "--settle-seconds",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for a node group after each increase (default: %(default)s)",
    )
    flags.add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Replay against running servers."""
    from cagrpc.replay.recording import read_recording
    from cagrpc.replay.report import as_json, print_report
    from cagrpc.replay.sockets import replay_over_sockets
    from cagrpc.server.certificates import load

    calls = read_recording(options.recording)
    files = load(*(options.certs / name for name in ("client.crt", "client.key", "ca.crt")))
    replay = replay_over_sockets(
        options.recording, calls, options.provider, options.expander, files, settle_seconds=options.settle_seconds
    )
    flags.show(options, replay, print_report, as_json)
    return 0 if replay.good else 1
