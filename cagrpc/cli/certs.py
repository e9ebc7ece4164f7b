"""`cagrpc certs`: development certificates, made by `cagrpc.server.certificates`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cagrpc.cli import flags
from cagrpc.output import say

SUMMARY = "make development certificates, or renew them"
DETAILS = "They are a CA, a certificate for provider and expander, and the cluster-autoscaler's client certificate."
EXAMPLES = (
    "cagrpc certs",
    "cagrpc certs --dir certs --host cagrpc.cagrpc.svc",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir", type=Path, default=flags.DEFAULT_CERTIFICATES_DIR, metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="HOST",
        help="a name or address by which the servers are reached, beside localhost, 127.0.0.1 and ::1; may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    """Make or renew, and report what was done."""
    from cagrpc.server.certificates import ensure_certificates

    made = ensure_certificates(options.dir, options.host)
    for name in made:
        say(f"made {options.dir / name}.crt and .key")
    if not made:
        say(f"the certificates in {options.dir} are still valid; nothing was made")
    return 0
