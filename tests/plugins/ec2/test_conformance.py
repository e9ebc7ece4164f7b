"""The EC2 backend passes the conformance suite, through the fault proxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from cagrpc.testing import BackendConformance, Cloud
from tests.support.ec2.cloud import Ec2Cloud
from tests.support.ec2.emulator import CREDENTIALS, Emulator


class TestEc2(BackendConformance):
    @pytest.fixture
    def cloud(self, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        emulator.reset()
        return Ec2Cloud(emulator, tmp_path)
