"""`cagrpc serve`: see `cagrpc.server.process`."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

from cagrpc.cli import flags

LEVELS = ("debug", "info", "warning", "error")
SUMMARY = "serve the provider, the expander and HTTP until SIGTERM"
DETAILS = "Without --config it serves the embedded configuration: a simulated fleet over provisioners with weights."
EXAMPLES = (
    "cagrpc serve",
    "cagrpc serve --demonstration",
    "cagrpc serve --config cagrpc.yaml --state-dir /var/lib/cagrpc",
    "cagrpc serve --ephemeral-ports --replay three-deployments --once",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_file(parser, "--config", "the configuration (YAML); see `cagrpc config schema`")
    parser.add_argument(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="keeps journal, simulated fleet and development certificates (default: the configuration's)",
    )
    for name in ("provider", "expander", "http"):
        parser.add_argument(
            f"--{name}-address", metavar="HOST:PORT", help=f"instead of the configuration's {name} address"
        )
    parser.add_argument(
        "--booking",
        metavar="DURATION",
        help="how long capacity is reserved for a ProvisioningRequest's pods: 10m, 600s (default: the configuration's)",
    )
    parser.add_argument(
        "--ephemeral-ports",
        action="store_true",
        help="listen on free ports of 127.0.0.1; endpoints.json in the state directory names them",
    )
    parser.add_argument(
        "--demonstration",
        action="store_true",
        help="serve a demonstration: a small cluster that is played in memory",
    )
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="default: %(default)s")
    parser.add_argument("--replay", metavar="RECORDING", help="once it serves, replay this recording against it")
    flags.add_file(parser, "--record", "write every call and its answer to this new .jsonl.gz file")
    parser.add_argument("--once", action="store_true", help="stop after the replay, with its exit code")


def run(options: argparse.Namespace) -> int:
    gc.disable()  # importing leaves next to no garbage, and looking for it is a sixth of what it takes
    from cagrpc.server.process import serve

    gc.freeze()  # what is imported stays: later collections need not look at it
    gc.enable()
    return serve(options)
