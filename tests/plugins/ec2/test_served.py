"""`cagrpc serve` with the EC2 backend, as a process: asked by an autoscaler, killed and started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from tests.support.controlplane.processes import wait_for
from tests.support.ec2.emulator import CREDENTIALS, REGION, ZONES
from tests.support.ec2.proxy import Cloud
from tests.support.ec2.world import TEMPLATE, Ec2World


def configuration(ec2: Ec2World, directory: Path) -> Path:
    groups: list[dict[str, Any]] = [
        {"id": "small", "instance_type": "m7i.large", "zone": ZONES[0]},
        {"id": "short", "instance_type": "c7i.large", "zone": ZONES[1], "capacity_type": "spot"},
    ]
    for each in groups:  # the embedded catalogue has no zones
        each |= {"allocatable": {"cpu": "2", "memory": "8Gi", "pods": 29}, "price_usd_per_hour": 0.1}
    backend = {
        "cluster_name": "prod",
        "region": REGION,
        "endpoint_url": ec2.url,
        "launch_template": {"name": TEMPLATE},
        "subnets": ec2.subnets,
    }
    path = directory / "cagrpc.yaml"
    provisioners = [{"name": "general", "node_groups": groups}]
    path.write_text(yaml.safe_dump({"provisioners": provisioners, "backend": {"ec2": backend}}))
    return path


def test_nodes_come_whole_survive_a_kill_and_go_again(ec2: Ec2World, tmp_path: Path, started: Any) -> None:
    ec2.proxy.cloud = Cloud(stock={("c7i.large", ZONES[1]): 1}, boot_seconds=0, shutdown_seconds=0)
    written = configuration(ec2, tmp_path)
    server = started("--config", written)
    with server.provider() as autoscaler:
        autoscaler.increase("small", 2)
        first = autoscaler.wait_for_running("small", 2)
        with pytest.raises(grpc.RpcError) as refused:
            autoscaler.increase("short", 2)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "InsufficientInstanceCapacity" in str(refused.value.details())
        assert autoscaler.target("short") == 0
        ec2.proxy.lose_answer("RunInstances")
        autoscaler.increase("small", 1)
    server.process.kill()
    server.process.wait()
    server = started("--config", written)
    with server.provider() as autoscaler:
        every = autoscaler.wait_for_running("small", 3)
        assert set(first) < set(every)
        assert ec2.proxy.made == 3
        autoscaler.delete("small", *every)
        wait_for(lambda: not ec2.proxy.alive, "every instance to be terminated")
        assert autoscaler.target("small") == 0
    assert server.get("/status")["backend_problem"] is None
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in server.log()


def test_a_template_that_is_missing_ends_the_start_with_its_name(ec2: Ec2World, tmp_path: Path, started: Any) -> None:
    written = configuration(ec2, tmp_path)
    written.write_text(written.read_text().replace(f"name: {TEMPLATE}", "name: nobody"))
    with pytest.raises(AssertionError, match=r"launch template nobody \(version \$Default\): EC2: InvalidLaunchTempl"):
        started("--config", written)
