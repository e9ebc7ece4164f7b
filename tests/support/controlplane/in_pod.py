"""`cagrpc` with the ServiceAccount of a pod: `python -m tests.support.controlplane.in_pod ROOT ARGUMENT...`.

What a pod finds below /var/run/secrets is below ROOT here; nothing else is changed.
"""

from __future__ import annotations

import sys

from kubernetes.config import incluster_config

from cagrpc.cli.main import main

if __name__ == "__main__":
    root = sys.argv.pop(1)
    for name in ("SERVICE_TOKEN_FILENAME", "SERVICE_CERT_FILENAME"):
        setattr(incluster_config, name, root + getattr(incluster_config, name))
    sys.exit(main(sys.argv[1:]))
