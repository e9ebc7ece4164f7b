"""moto's emulator of EC2 as a process of its own. What it cannot play (client tokens, shortages) is in `proxy`."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import boto3

from cagrpc.api.core.nodes import START_UP_TAINT
from tests.support.waiting import AMPLE_SECONDS

REGION = "eu-central-1"
ZONES = ("eu-central-1a", "eu-central-1b", "eu-central-1c")
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLEEXAMPLE01",
    "AWS_SECRET_ACCESS_KEY": "only-for-tests",
    "AWS_EC2_METADATA_DISABLED": "true",
}
USER_DATA = f"#!/bin/sh\nexec kubelet --register-with-taints={START_UP_TAINT}=:NoSchedule --node-labels=x=y\n"


class Emulator:
    """A server of an account in `REGION`."""

    def __init__(self, url: str) -> None:
        self.url = url
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        self.client: Any = boto3.client("ec2", region_name=REGION, endpoint_url=url, **keys)
        """Goes round the proxy."""

    def reset(self) -> None:
        """Begin again with an empty account."""
        with urlopen(Request(f"{self.url}/moto-api/reset", method="POST"), timeout=AMPLE_SECONDS):
            pass

    def alive(self) -> AbstractSet[str]:
        """Return the ids of all instances that have not ended, whoever made them."""
        states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        pages = list(self.client.get_paginator("describe_instances").paginate(Filters=states))
        return {each["InstanceId"] for page in pages for of in page["Reservations"] for each in of["Instances"]}

    def launch(self, tags: Mapping[str, str]) -> None:
        """Launch an instance as people do, past the proxy."""
        written = [{"Key": key, "Value": value} for key, value in tags.items()]
        specifications = [{"ResourceType": "instance", "Tags": written}]
        self.client.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1, TagSpecifications=specifications)

    def subnets(self) -> dict[str, str]:
        """Return a subnet of each zone."""
        found = self.client.describe_subnets()["Subnets"]
        return {each["AvailabilityZone"]: each["SubnetId"] for each in found}

    def make_template(self, name: str, data: Mapping[str, Any] | None = None) -> str:
        """Make a launch template, as one is made for workers; return its id."""
        user_data = base64.b64encode(USER_DATA.encode()).decode()
        content = {"ImageId": "ami-12c6146b", "UserData": user_data, **(data or {})}
        made = self.client.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=content)
        return str(made["LaunchTemplate"]["LaunchTemplateId"])


@contextmanager
def running() -> Iterator[Emulator]:
    """Run the emulator until the end of the block."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **CREDENTIALS, "AWS_DEFAULT_REGION": REGION},
    )
    try:
        emulator = Emulator(f"http://127.0.0.1:{port}")
        _wait_for(emulator, process)
        yield emulator
    finally:
        process.kill()
        process.wait()


def _wait_for(emulator: Emulator, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + AMPLE_SECONDS
    while True:
        try:
            return emulator.reset()
        except (URLError, OSError):
            assert process.poll() is None, "moto's server has ended; is moto installed, with flask and flask-cors?"
            assert time.monotonic() < deadline, "moto's server does not answer"
            time.sleep(0.05)
