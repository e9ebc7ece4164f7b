"""Many increments of a real `Fleet` over the EC2 backend, with faults all the time: each is whole or gone."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

from cagrpc import errors
from cagrpc.fleet.fleet import Fleet, FleetSettings
from cagrpc.fleet.journal import SqliteJournal
from cagrpc.fleet.model import IncrementSpec, Phase
from tests.support.clocks import any_clock
from tests.support.ec2.emulator import ZONES
from tests.support.ec2.proxy import Cloud
from tests.support.ec2.world import Ec2World, group

GROUPS = (
    group("a", ZONES[0]),
    group("b", ZONES[1], "spot"),
    group("c", ZONES[2], instance_type="c7i.large"),
    group("never", ZONES[0], instance_type="p5.48xlarge"),
)
INCREMENTS = 30
SHORT = ("p5.48xlarge", ZONES[0])
FINISHED = (Phase.DONE, Phase.ROLLED_BACK)


class Soak:
    """The fleet's processes, one after the other, before an EC2 with faults."""

    def __init__(self, ec2: Ec2World, journal: Path) -> None:
        self.ec2 = ec2
        self.random = random.Random(1)
        self._journal = journal
        self._calm()
        self.fleet = self._start()
        self.restarts = 0
        self.failures = 0

    def _start(self) -> Fleet:
        while True:
            with suppress(errors.Unavailable):
                backend = self.ec2.open(groups=GROUPS)
                break
            self.ec2.now += 1
        clock = any_clock(self.ec2.clock)
        journal = SqliteJournal(self._journal)
        return Fleet(FleetSettings(GROUPS), backend, journal, clock=clock, submit=lambda work: work())

    def _calm(self) -> None:
        self.ec2.proxy.cloud = Cloud(stock={SHORT: 0})

    def restart(self) -> None:
        """Kill the process and begin the next."""
        self.fleet.close()
        self.fleet = self._start()
        self.restarts += 1

    def disturb(self) -> None:
        """Have one of EC2's bad moments, or none."""
        proxy, action = self.ec2.proxy, self.random.choice(["RunInstances", "TerminateInstances", "DescribeInstances"])
        match self.random.randrange(12):
            case 0:
                proxy.lose_answer(action)
            case 1:
                proxy.delay_call("RunInstances")
            case 2:
                proxy.deliver_late()
            case 3:
                proxy.refuse(action, "RequestLimitExceeded", status=503)
            case 4:
                proxy.refuse(action, "InternalError", status=500, times=2)
            case 5:
                proxy.cloud.visible_after_seconds = self.random.choice([0, 20, 100])
            case 6:
                proxy.refuse("RunInstances", "InsufficientInstanceCapacity", status=500)
            case 7:
                proxy.launch_short(fewer=1)
            case 8:
                self.restart()

    def step(self, seconds: float = 1.0) -> None:
        self.ec2.now += seconds
        try:
            self.fleet.reconcile()
        except errors.Unavailable:
            self.failures += 1

    def settle(self) -> None:
        """Step without faults until every increment is finished and everything to be deleted is gone."""
        self.ec2.proxy.deliver_late()
        self._calm()
        for _ in range(200):
            self.step(seconds=5)
            if all(each.phase in FINISHED for each in self.fleet.snapshot.increments):
                break
        for _ in range(30):  # what came late is listed, and deleted
            self.step(seconds=5)


def test_every_increment_is_whole_or_gone(ec2: Ec2World, tmp_path: Path) -> None:
    soak = Soak(ec2, tmp_path / "journal.sqlite")
    asked: dict[str, Counter[str]] = {}
    for number in range(INCREMENTS):
        chosen = soak.random.sample(GROUPS[:3], soak.random.randint(1, 3))
        if number % 3 == 0:
            chosen.append(GROUPS[3])
        deltas = {each.id: soak.random.randint(1, 2) for each in chosen}
        with suppress(errors.OrderRefused):
            increment = soak.fleet.apply(IncrementSpec(deltas))
            asked[increment.id] = Counter(deltas)
        soak.disturb()
        for _ in range(soak.random.randint(1, 4)):
            soak.step()
    soak.settle()
    statuses = {each.id: each for each in soak.fleet.snapshot.increments}
    assert {each.phase for each in statuses.values()} <= set(FINISHED)
    done = [asked[each] for each, status in statuses.items() if status.phase is Phase.DONE]
    whole: Counter[str] = sum(done, Counter())
    assert "never" not in whole
    assert {key: state.target_size for key, state in soak.fleet.snapshot.groups.items() if state.target_size} == whole
    assert sum(ec2.proxy.alive.values()) == whole.total(), "nothing is left of any other"
    assert len(soak.fleet.snapshot.group_of_instance) == whole.total()
    assert len(done) >= INCREMENTS // 5, "most of those that can be had are"
    assert soak.restarts >= 1
    assert soak.failures >= 1
    assert ec2.proxy.throttled == 0
