"""Increments over three Auto Scaling groups by the backend `externalgrpc`, through kubernetes/autoscaler's own wrapper
and its AWS provider, over moto: answers are lost, increases come late, the process is killed at any step, and groups
run out. In the end every increment is whole or gone, and targets are what there is of machines.

    python -m bench.wrapped_provider --wrapper PROGRAM [--increments 100] [--seed 1] [--at-most 30m] [--serve]

PROGRAM is built in its repository (`cluster-autoscaler/cloudprovider/externalgrpc/examples/
external-grpc-cloud-provider-service`, `-tags aws`). moto launches whatever is asked for, so a proxy before it plays a
group that has run out as AWS does: its desired capacity is above its instances, and its activities have failed. Times
are real, the provider's cache of a minute too; killed processes are played in this one (`tests/support/kills.py`).
With `--serve` they are `cagrpc serve`, ended by SIGKILL at any moment: it is asked for one group at a time, as the
cluster-autoscaler asks, and AWS answers some orders after their timeout.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import Random
from threading import Timer
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs
from urllib.request import Request, urlopen

import boto3
import grpc
import yaml

from bench.table import machine, machine_line
from cagrpc import errors
from cagrpc.api.gen import externalgrpc_pb2 as pb
from cagrpc.backends.externalgrpc.backend import opened_over
from cagrpc.backends.externalgrpc.client import Channel, ProviderClient
from cagrpc.backends.externalgrpc.plugin import ProviderAccess
from cagrpc.backends.plugin import BackendContext
from cagrpc.durations import seconds_of_flag
from cagrpc.fleet.backend_records import BackendRecords
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import IncrementSpec, Origin, Phase
from cagrpc.runtime.clock import SteadyClock, epoch
from tests.support.ec2.emulator import CREDENTIALS, REGION, ZONES, Emulator, running
from tests.support.fleet import group, run_inline
from tests.support.http_server import serving
from tests.support.kills import Killed, SteppedJournal, Steps
from tests.support.played_provider import FaultyChannel, PlayedError
from tests.support.serving import Serving, serve, started_process

GROUPS = ("a", "b", "c")
_MOST_NODES = 200
_MOST_IN_FLIGHT = 12
_DEADLINE_SECONDS = 400.0
_BEHIND_SECONDS = 90.0
_EVERY_SECONDS = 1.0
_SETTLES_WITHIN_SECONDS = 900.0
_STEPS_TO_DEATH = 300
_SECONDS_TO_DEATH = 30.0
_FINISHED = ("done", "rolled-back")
_RUNNING = pb.InstanceStatus.instanceRunning
_FAULT_SECONDS = (10.0, 40.0)
_OUT_SECONDS = (90.0, 240.0)
"""Longer than the provider takes to see a shortage, so that increments are short, not late alone."""
_DESIRED = re.compile(r"(<AutoScalingGroupName>([^<]+)</AutoScalingGroupName>.*?<DesiredCapacity>)\d+", re.DOTALL)
_ACTIVITIES = (
    '<DescribeScalingActivitiesResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">'
    "<DescribeScalingActivitiesResult><Activities>{}</Activities></DescribeScalingActivitiesResult>"
    "<ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></DescribeScalingActivitiesResponse>"
)
_FAILED = (
    "<member><ActivityId>1</ActivityId><AutoScalingGroupName>{name}</AutoScalingGroupName><StartTime>{at}</StartTime>"
    "<StatusCode>Failed</StatusCode><Cause>asked for</Cause><Description>Launching a new EC2 instance. Status Reason:"
    " We currently do not have sufficient capacity in the Availability Zone you requested."
    " (InsufficientInstanceCapacity)</Description></member>"
)


class Clouds:
    """The Auto Scaling groups of moto, and what they would have beyond what they can."""

    def __init__(self, emulator: Emulator) -> None:
        self.url = emulator.url
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        self.scaling: Any = boto3.client("autoscaling", region_name=REGION, endpoint_url=emulator.url, **keys)
        self.most: dict[str, int] = {}
        """Machines that groups which have run out can have."""
        self.desired: dict[str, int] = {}
        """Of groups that have fewer than that."""
        self.out_until: dict[str, float] = {}
        """Groups that have run out."""
        self.slow_seconds = 0.0
        """How much later orders are carried out and answered."""
        self.calls: Counter[str] = Counter()
        emulator.make_template("workers", {"InstanceType": "m7i.large"})
        for name in GROUPS:
            self.scaling.create_auto_scaling_group(
                AutoScalingGroupName=name,
                MinSize=0,
                MaxSize=_MOST_NODES,
                DesiredCapacity=0,
                LaunchTemplate={"LaunchTemplateName": "workers", "Version": "$Latest"},
                VPCZoneIdentifier=emulator.subnets()[ZONES[0]],
            )

    def machines(self) -> dict[str, list[str]]:
        """Return the ids of all machines by their group."""
        found = self.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=list(GROUPS))["AutoScalingGroups"]
        return {each["AutoScalingGroupName"]: [i["InstanceId"] for i in each["Instances"]] for each in found}

    def targets(self) -> dict[str, int]:
        return {name: self.desired.get(name, len(ids)) for name, ids in self.machines().items()}

    def drift(self, rng: Random) -> bool:
        """Let a group run out now and then, for a while; return whether one has just now."""
        now = time.monotonic()
        for name in [name for name, at in self.out_until.items() if at <= now]:
            self._recover(name)
        if self.out_until or rng.random() >= 0.05:
            return False
        name = rng.choice(GROUPS)
        self.out_until[name] = now + rng.uniform(*_OUT_SECONDS)
        self.most[name] = len(self.machines()[name]) + rng.randint(0, 2)
        return True

    def clear_up(self) -> None:
        self.slow_seconds = 0.0
        for name in GROUPS:
            self._recover(name)

    def _recover(self, name: str) -> None:
        """There is capacity again, and AWS goes on trying."""
        self.out_until.pop(name, None)
        self.most.pop(name, None)
        if (wanted := self.desired.pop(name, None)) is not None:
            self._set(name, wanted)

    def answer(self, asked: Mapping[str, str], body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        action, name = asked.get("Action", ""), asked.get("AutoScalingGroupName", "")
        self.calls[action] += 1
        if action in ("SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup"):
            time.sleep(self.slow_seconds)
        if action == "SetDesiredCapacity":
            wanted, most = int(asked["DesiredCapacity"]), self.most.get(name, _MOST_NODES)
            self.desired.pop(name, None)
            if wanted > most:
                self.desired[name] = wanted
                body = body.replace(f"DesiredCapacity={wanted}".encode(), f"DesiredCapacity={most}".encode())
        if action == "DescribeScalingActivities":
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            failed = _FAILED.format(name=name, at=now) if name in self.desired else ""
            return 200, _ACTIVITIES.format(failed).encode()
        ids = self.machines() if action == "TerminateInstanceInAutoScalingGroup" else {}
        of = next((key for key, each in ids.items() if asked["InstanceId"] in each), "")
        request = Request(self.url, data=body, headers=dict(headers), method="POST")
        try:
            with urlopen(request, timeout=60) as found:
                status, text = found.status, found.read()
        except HTTPError as error:
            return error.code, error.read()
        if action == "TerminateInstanceInAutoScalingGroup":
            self._terminated(of)
        if action == "DescribeAutoScalingGroups":
            text = _DESIRED.sub(
                lambda at: f"{at[1]}{self.desired.get(at[2]) or at[0].removeprefix(at[1])}", text.decode()
            ).encode()
        return status, text

    def _terminated(self, name: str) -> None:
        """One less is asked for; where there are fewer still, its machine makes room for another."""
        wanted, there = self.desired.get(name), len(self.machines()[name])
        if wanted is None:
            return
        can = max(there, min(wanted - 1, self.most.get(name, _MOST_NODES)))
        if can > there:
            self._set(name, can)
        if wanted - 1 > can:
            self.desired[name] = wanted - 1
        else:
            del self.desired[name]

    def _set(self, name: str, wanted: int) -> None:
        self.scaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=wanted)


@contextmanager
def before(clouds: Clouds) -> Iterator[str]:
    """Run the proxy."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked = {key: values[0] for key, values in parse_qs(body.decode(), keep_blank_values=True).items()}
            kept = {
                key: self.headers[key] for key in ("Authorization", "Content-Type", "X-Amz-Date") if self.headers[key]
            }
            status, text = clouds.answer(asked, body, kept)
            self.send_response(status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as (_, url):
        yield url


@contextmanager
def wrapper(program: Path, directory: Path, url: str) -> Iterator[str]:
    """Run the wrapper over the cloud at this address; give its own."""
    config = directory / "cloud-config"
    overrides = [
        f'[ServiceOverride "{number}"]\nService = {service}\nRegion = {REGION}\nURL = {url}\nSigningRegion = {REGION}\n'
        for number, service in enumerate(("autoscaling", "ec2", "eks"))
    ]
    config.write_text("".join(overrides))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    nodes = [f"--nodes=0:{_MOST_NODES}:{name}" for name in GROUPS]
    command = [str(program), f"--address={address}", "--cloud-provider=aws", f"--cloud-config={config}", *nodes]
    environment = {**os.environ, **CREDENTIALS, "AWS_REGION": REGION, "AWS_ENDPOINT_URL": url}
    with (directory / "wrapper.log").open("w") as log:
        process = subprocess.Popen([*command, "-v=4"], stdout=log, stderr=log, env=environment)
    try:
        yield address
        assert process.poll() is None, f"the wrapper has ended:\n{(directory / 'wrapper.log').read_text()[-3000:]}"
    finally:
        process.kill()
        process.wait()


@dataclass
class Campaign:
    """One process after the other over one journal, as long as there is to be done."""

    directory: Path
    address: str
    clouds: Clouds
    rng: Random
    goal: int
    told: Counter[str] = field(default_factory=Counter)
    phases: dict[str, Phase] = field(default_factory=dict)
    """Of all increments, by their reason."""
    ids: dict[str, str] = field(default_factory=dict)
    """Of increments, by their reason."""
    wanted: dict[str, Mapping[str, int]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    """Increments that were done and whose machines were to be deleted, by their reason."""
    violations: list[str] = field(default_factory=list)
    fleet: Fleet | None = None
    steps: Steps = field(default_factory=Steps)
    faults_until: float = 0.0

    def __post_init__(self) -> None:
        channel = Channel(self.address, None)

        def call(*asked: Any) -> Any:
            try:
                return channel(*asked)
            except grpc.RpcError as error:  # as what may be lost
                raise PlayedError(error.code(), error.details() or "") from error

        self.channel = FaultyChannel(call, epoch)  # type: ignore[arg-type] # a clock like others
        self.access = ProviderAccess(self.address, behind_seconds=_BEHIND_SECONDS, list_every_seconds=5.0)
        self.groups = tuple(group(name, max_size=_MOST_NODES) for name in GROUPS)

    def run(self, until: float) -> None:
        while len(self.wanted) < self.goal and time.monotonic() < until and not self.violations:
            self._weather()
            self._attempt(self._work)
            time.sleep(_EVERY_SECONDS)
        self._clear_up()
        most = time.monotonic() + _SETTLES_WITHIN_SECONDS
        while self._unsettled() and time.monotonic() < most:
            self._attempt(self._look)
            time.sleep(_EVERY_SECONDS)
        self._judge()

    # ---- what goes wrong

    def _weather(self) -> None:
        now, rng = time.monotonic(), self.rng
        if self.clouds.drift(rng):
            self.told["times that a group ran out"] += 1
        if now < self.faults_until:
            return
        self.channel.recover()
        draw = rng.random()
        if draw < 0.05:
            self.channel.losing = rng.randint(0, 1)
            self.told["times that answers were lost"] += 1
        elif draw < 0.08:
            self.channel.delay_seconds = rng.uniform(2.0, 30.0)
            self.told["times that calls came late"] += 1
        elif draw < 0.1:
            self.channel.is_cut = True
            self.told["times that the provider was away"] += 1
        else:
            return
        self.faults_until = now + rng.uniform(*_FAULT_SECONDS)

    def _clear_up(self) -> None:
        self.channel.recover()
        self.steps.fatal = 0
        self.clouds.clear_up()

    # ---- processes

    def _attempt(self, do: Any) -> None:
        try:
            if self.fleet is None:
                self._start()
            do(self.fleet)
        except Killed:
            self.told["processes killed"] += 1
            self._end()
        except errors.CagrpcError as error:
            self.told[f"calls refused: {type(error).__name__}"] += 1

    def _start(self) -> None:
        ends = len(self.wanted) < self.goal
        self.steps = Steps(int(self.rng.expovariate(1 / _STEPS_TO_DEATH)) + 1 if ends else 0)
        self.told["processes"] += 1
        self.file = SqliteJournal(self.directory / "journal.sqlite")
        journal = SteppedJournal(self.file, self.steps)
        clock = SteadyClock()
        call = self.steps.around("call", self.channel)
        context = BackendContext(self.directory, clock, records=BackendRecords(journal))
        try:
            backend = opened_over([ProviderClient(self.access, call)], context)
            settings = FleetSettings(self.groups, increment_deadline_seconds=_DEADLINE_SECONDS)
            self.fleet = Fleet(settings, backend, journal, clock=clock, submit=run_inline)
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self.fleet = None
        self.file.close()

    # ---- what is asked for

    def _work(self, fleet: Fleet) -> None:
        self._look(fleet)
        rng = self.rng
        in_flight = sum(each.in_flight for each in self.phases.values())
        if in_flight < _MOST_IN_FLIGHT and rng.random() < 0.2:
            reason = f"increment {len(self.wanted)}"
            self.wanted[reason] = {name: rng.randint(1, 2) for name in GROUPS}
            with suppress(errors.OrderRefused):
                fleet.apply(IncrementSpec(self.wanted[reason], Origin.CAGRPC, reason=reason))
        for reason, phase in self.phases.items():
            if phase is Phase.DONE and reason not in self.deleted and rng.random() < 0.02:
                for name, ids in self._slots(reason).items():
                    fleet.delete_instances(name, [each for each in ids if each])
                self.deleted.add(reason)

    def _look(self, fleet: Fleet) -> None:
        fleet.reconcile()
        for each in fleet.snapshot.increments:
            reason = each.increment.reason
            before = self.phases.get(reason)
            if before in (Phase.DONE, Phase.ROLLED_BACK) and each.phase is not before:
                self.violations.append(f"{reason} was {before} and is {each.phase}")
            self.phases[reason], self.ids[reason] = each.phase, each.id
            if each.phase is Phase.DONE and before is not Phase.DONE:
                found = {name: len([key for key in ids if key]) for name, ids in self._slots(reason).items()}
                if found != self.wanted[reason]:
                    self.violations.append(f"{reason} is done and has {found} of {self.wanted[reason]}")

    def _slots(self, reason: str) -> dict[str, list[str]]:
        """Return the ids of an increment's machines, by group, as the backend keeps them."""
        kept = BackendRecords(self.file).read()
        of = f"{self.ids[reason]}-"
        return {
            name: [slot["id"] for slot in each["slots"] if slot["token"].startswith(of)]
            for name, each in kept.items()
            if any(slot["token"].startswith(of) for slot in each["slots"])
        }

    # ---- what came of it

    def _unsettled(self) -> bool:
        if self.fleet is None or any(each.in_flight for each in self.phases.values()):
            return True
        return bool(self._differences())

    def _differences(self) -> list[str]:
        """Return what is not as it has to be in the end."""
        fleet = self.fleet
        if fleet is None:
            return ["no process could be started"]
        kept, machines, targets = BackendRecords(self.file).read(), self.clouds.machines(), self.clouds.targets()
        done = [reason for reason, phase in self.phases.items() if phase is Phase.DONE and reason not in self.deleted]
        found = []
        for name in GROUPS:
            wanted = sum(self.wanted[reason][name] for reason in done)
            counts = {
                "machines": len(machines[name]),
                "desired": targets[name],
                "target of the fleet": fleet.snapshot.groups[name].target_size,
                "listed": len(fleet.snapshot.groups[name].instances),
            }
            found += [f"{name}: {what} {count}, {wanted} wanted" for what, count in counts.items() if count != wanted]
            orders = kept.get(name, {})
            if orders.get("owed") or orders.get("doubt"):
                found.append(f"{name}: {orders.get('owed')} owed, in doubt {orders.get('doubt')}")
        for reason in done:
            ids = {key.rpartition("/")[2] for of in self._slots(reason).values() for key in of}
            lacking = ids - {each for of in machines.values() for each in of}
            if lacking or len(ids) != sum(self.wanted[reason].values()):
                found.append(f"{reason} is done with {len(ids)} machines, of which {len(lacking)} are not there")
        return found

    def _judge(self) -> None:
        counts = Counter(each.value for each in self.phases.values())
        self.told["increments asked for"] = len(self.wanted)
        self.told.update({f"increments {phase}": count for phase, count in counts.items()})
        self.told["increments whose machines were deleted again"] = len(self.deleted)
        self.told["machines in the end"] = sum(map(len, self.clouds.machines().values()))
        self.told.update({f"calls of AWS: {name}": count for name, count in self.clouds.calls.items()})
        self.violations += self._differences()
        self.violations += [f"{r} is {p}" for r, p in self.phases.items() if p.in_flight]


@dataclass
class ServedCampaign:
    """Servers one after the other over one state directory, each killed at some moment, and asked as the autoscaler
    asks: increments of one group, and deletions of single machines."""

    directory: Path
    address: str
    clouds: Clouds
    rng: Random
    goal: int
    told: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    asked: int = 0
    increments: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """As a server has shown them last, by id."""
    deleted: dict[str, bool] = field(default_factory=dict)
    """Machines that were to be deleted, and whether that was answered."""
    serving: Serving | None = None
    kills: bool = True
    slow_until: float = 0.0

    def __post_init__(self) -> None:
        behind = f"{_BEHIND_SECONDS:.0f}s"
        access = {"address": self.address, "order_timeout": "3s", "behind": behind, "list_every": "5s"}
        self.config = self.directory / "cagrpc.yaml"
        self.config.write_text(
            yaml.safe_dump(
                {
                    "backend": {"externalgrpc": access},
                    "provisioners": [{"name": "all"}],
                    "increment_deadline": f"{_DEADLINE_SECONDS:.0f}s",
                }
            )
        )

    def run(self, until: float) -> None:
        while self.asked < self.goal and time.monotonic() < until and not self.violations:
            self._weather()
            self._attempt(self._work)
            time.sleep(_EVERY_SECONDS)
        self.clouds.clear_up()
        self.kills = False
        most = time.monotonic() + _SETTLES_WITHIN_SECONDS
        while time.monotonic() < most and not self._attempt(self._settled):
            time.sleep(_EVERY_SECONDS)
        self._judge()

    def _weather(self) -> None:
        now = time.monotonic()
        if self.clouds.drift(self.rng):
            self.told["times that a group ran out"] += 1
        if now >= self.slow_until:
            self.clouds.slow_seconds = 0.0
            if self.rng.random() < 0.05:
                self.clouds.slow_seconds = self.rng.uniform(3.5, 15.0)
                self.slow_until = now + self.rng.uniform(*_FAULT_SECONDS)
                self.told["times that orders were answered too late"] += 1

    def _attempt(self, do: Callable[[Serving], bool]) -> bool:
        """Do it with a server that runs; False where that was killed meanwhile, too."""
        serving = self.serving
        if serving is None or serving.process.poll() is not None:
            serving = self.serving = self._start()
        try:
            return do(serving)
        except (OSError, HTTPException, ValueError) as error:
            self.told[f"pages not read: {type(error).__name__}"] += 1
        return False

    def _start(self) -> Serving:
        self.told["processes"] += 1
        serving = serve(self.directory / "state", "--config", self.config, start=started_process)
        if self.kills:
            Timer(self.rng.expovariate(1 / _SECONDS_TO_DEATH), self._kill, (serving,)).start()
        return serving

    def _kill(self, serving: Serving) -> None:
        if self.kills:
            self.told["processes killed"] += 1
            serving.stop(signal.SIGKILL)

    # ---- what is asked for

    def _work(self, serving: Serving) -> bool:
        self._delete_failed(serving)
        in_flight = [each for each in self._look(serving).values() if each["phase"] not in _FINISHED]
        rng, name = self.rng, self.rng.choice(GROUPS)
        with serving.provider() as provider:
            if len(in_flight) < _MOST_IN_FLIGHT and rng.random() < 0.3:
                self.asked += 1
                self._ask(lambda: provider.increase(name, rng.randint(1, 3)), "increases")
            if rng.random() < 0.1 and not any(name in each["deltas"] for each in in_flight):
                running = [key for key, state in provider.instances(name).items() if state == _RUNNING]
                if running and (key := rng.choice(running)) not in self.deleted:
                    self.deleted[key] = False
                    self.deleted[key] = self._ask(lambda: provider.delete(name, key), "deletions")
        return True

    def _delete_failed(self, serving: Serving) -> None:
        """Delete what has an error, as the autoscaler does: until then it is in the target."""
        with serving.provider() as provider, suppress(grpc.RpcError):
            for name in GROUPS:
                if failed := provider.failed(name):
                    self._ask(partial(provider.delete, name, *failed), "deletions of what failed")

    def _ask(self, call: Callable[[], None], what: str) -> bool:
        try:
            call()
        except grpc.RpcError as error:
            self.told[f"{what}: {error.code().name}"] += 1
            return False
        self.told[f"{what}: OK"] += 1
        return True

    def _look(self, serving: Serving) -> Mapping[str, Mapping[str, Any]]:
        found = {each["id"]: each for each in serving.get("/increments")}
        for key, before in self.increments.items():
            if key not in found or (before["phase"] in _FINISHED and found[key]["phase"] != before["phase"]):
                now = found[key]["phase"] if key in found else "forgotten"
                self.violations.append(f"increment {key} was {before['phase']} and is {now}")
        self.increments = found
        return found

    # ---- what came of it

    def _settled(self, serving: Serving) -> bool:
        self._delete_failed(serving)
        done = all(each["phase"] in _FINISHED for each in self._look(serving).values())
        return done and not self._differences(serving)

    def _differences(self, serving: Serving) -> list[str]:
        machines, desired = self.clouds.machines(), self.clouds.targets()
        there = {key for of in machines.values() for key in of}
        gone = Counter(key.rpartition("/")[2] not in there for key, answered in self.deleted.items() if answered)
        found = [f"{gone[False]} machines are there whose deletion was answered"] if gone[False] else []
        targets = {each["id"]: each["target_size"] for each in serving.get("/nodegroups")}
        for name in GROUPS:
            counts = len(machines[name]), desired[name], targets[name]
            if len({*counts}) > 1:
                found.append("{}: {} machines, {} desired, target {}".format(name, *counts))
        done = [each["deltas"] for each in self.increments.values() if each["phase"] == "done"]
        deleted = sum(key.rpartition("/")[2] not in there for key in self.deleted)
        wanted = sum(sum(each.values()) for each in done) - deleted
        if wanted != len(there):
            found.append(f"{len(there)} machines, and {wanted} in increments that are done, without what was deleted")
        return found

    def _judge(self) -> None:
        phases = {key: each["phase"] for key, each in self.increments.items()}
        self.told["increases asked for"] = self.asked
        self.told.update({f"increments {phase}": count for phase, count in Counter(phases.values()).items()})
        if len(phases) < self.told["increases: OK"]:
            self.violations.append(f"{self.told['increases: OK']} increases were taken, of which some are not known")
        self.told["machines in the end"] = sum(map(len, self.clouds.machines().values()))
        if self.serving is not None:
            self.violations += self._differences(self.serving)
            self.serving.stop(signal.SIGKILL)
        self.violations += [f"increment {key} is {phase}" for key, phase in phases.items() if phase not in _FINISHED]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wrapper", type=Path, required=True, help="the program, with the provider aws")
    parser.add_argument("--increments", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of whatever is drawn")
    parser.add_argument("--serve", action="store_true", help="kill `cagrpc serve`, not what is played of it here")
    parser.add_argument("--at-most", default="30m", metavar="DURATION", help="how long increments are asked for")
    options = parser.parse_args()
    until = time.monotonic() + seconds_of_flag(options.at_most, "--at-most")
    print(f"Machine: {machine_line(machine())}.\n", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as made, running() as emulator:
        clouds, directory = Clouds(emulator), Path(made)
        with before(clouds) as url, wrapper(options.wrapper, directory, url) as address:
            _wait_for(address)
            kind = ServedCampaign if options.serve else Campaign
            campaign = kind(directory, address, clouds, Random(options.seed), options.increments)
            campaign.run(until)
    for what, count in sorted(campaign.told.items()):
        print(f"{what}: {count}")
    print(f"seconds: {time.monotonic() - began:.0f}")
    print(*(campaign.violations or ["nothing that must not be"]), sep="\n")
    return 1 if campaign.violations else 0


def _wait_for(address: str) -> None:
    channel = Channel(address, None)
    client = ProviderClient(ProviderAccess(address), channel)
    for _ in range(600):
        with suppress(errors.Unavailable, PlayedError):
            print("groups:", ", ".join(each.id for each in client.groups()), flush=True)
            channel.close()
            return
        time.sleep(0.5)
    raise AssertionError("the wrapper does not answer")


if __name__ == "__main__":
    sys.exit(main())
