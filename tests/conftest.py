"""For every test: the profiles of hypothesis, and the fixtures that are known everywhere."""

from __future__ import annotations

import signal

from tests.support.examples import load_profile
from tests.support.tls_sockets import close_tls_sockets_that_are_reset

load_profile()  # before any module with properties is imported; --hypothesis-profile comes after it, and wins
close_tls_sockets_that_are_reset()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what it starts with "&"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or the programs under test ignore Ctrl-C

pytest_plugins = [
    "tests.support.browser",
    "tests.support.logs",
    "tests.support.serving",
    "tests.support.controlplane.plugin",
    "tests.support.controlplane.cluster_api",
]
