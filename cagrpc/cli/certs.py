"""`cagrpc certs`: development certificates, made by `certificates`."""

from __future__ import annotations

import argparse

from cagrpc.server.certificates import ensure_certificates


def run(options: argparse.Namespace) -> int:
    """Make or renew; says what was done."""
    made = ensure_certificates(options.dir, options.host)
    for name in made:
        print(f"made {options.dir / name}.crt and .key")
    if not made:
        print(f"the certificates in {options.dir} are good; nothing was made")
    return 0
