"""A proxy before the emulator that plays what EC2 does and moto does not: client tokens, stock, quotas, capacity
reservations, call rates, lists that lag behind, instances that take time to start and to end, and faults on demand.

Times are those of an injected clock. EC2's own rules, and how it words them, are those of its API reference.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import parse_qsl, urlencode
from urllib.request import Request, urlopen
from xml.etree import ElementTree as ET

from tests.support.ec2.emulator import Emulator
from tests.support.ec2.limits import AccountLimits
from tests.support.http_server import serving
from tests.support.waiting import AMPLE_SECONDS

_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15"
_ID = re.compile(r"<instanceId>(i-[0-9a-f]+)</instanceId>")
_OF_EACH_TRY = re.compile(r"^(X-Amz-.*|Signature.*|AWSAccessKeyId|Timestamp)$")
_TERMINATED_SHOWN_SECONDS = 3600.0
VCPUS = {"m7i.large": 2, "c7i.large": 2, "p5.48xlarge": 192}
ET.register_namespace("", _NAMESPACE)

Parameters = Mapping[str, str]


class Answer(NamedTuple):
    status: int
    body: bytes


class Refusal(Exception):  # noqa: N818 - what EC2 answers
    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(code)
        text = f"<Code>{code}</Code><Message>{message}</Message>"
        body = f"<Response><Errors><Error>{text}</Error></Errors><RequestID>r</RequestID></Response>"
        self.answer = Answer(status, body.encode())


@dataclass(frozen=True, slots=True)
class Call:
    """A call that has reached EC2."""

    seconds: float
    action: str
    parameters: Parameters

    @property
    def instances(self) -> int:
        """How many instances it is about."""
        if self.action == "RunInstances":
            return int(self.parameters["MaxCount"])
        return sum(key.startswith("InstanceId.") for key in self.parameters)


@dataclass(slots=True)
class _Machine:
    instance_type: str
    zone: str
    reservation: str | None
    created_at: float
    ended_at: float | None = None
    reason: tuple[str, str] = ("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")


@dataclass(slots=True)
class _Fault:
    """Of the next call of an action."""

    play: Callable[[Parameters], Answer | None]
    """Return the answer; None for no answer at all."""


@dataclass(slots=True)
class Cloud:
    """What EC2 has, as tests set it."""

    stock: dict[tuple[str, str], int] = field(default_factory=dict)
    """Free machines by instance type and zone; others have no bound."""
    reservations: dict[str, int] = field(default_factory=dict)
    """Free machines by id of the capacity reservation."""
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    """The error code that launches are refused with, by instance type and zone."""
    vcpu_quota: int | None = None
    visible_after_seconds: float = 0.0
    """How long lists, and terminations, do not know a new instance."""
    boot_seconds: float = 10.0
    """How long an instance is pending."""
    shutdown_seconds: float = 20.0
    page_size: int | None = None
    """Reservations of a page, where it is less than asked for."""


@contextmanager
def proxied(emulator: Emulator, clock: Callable[[], float]) -> Iterator[tuple[FaultProxy, str]]:
    """Run a proxy before the emulator, and yield its URL too."""
    proxy = FaultProxy(emulator, clock)
    with serving(_handler(proxy)) as (_, url):
        yield proxy, url
        proxy.release()


class FaultProxy:
    """What the requests of one port are answered with."""

    def __init__(self, emulator: Emulator, clock: Callable[[], float]) -> None:
        self.cloud = Cloud()
        self.calls: list[Call] = []
        self.limits = AccountLimits()
        self.throttled = 0
        self.away = False
        """Whether no connection is answered."""
        self.answers_left: int | None = None
        """After so many calls that create or delete, the others have their effect, but no answer."""
        self.emulator = emulator
        self._clock = clock
        self._zones = {subnet: zone for zone, subnet in emulator.subnets().items()}
        self._machines: dict[str, _Machine] = {}
        self._tokens: dict[str, tuple[Parameters, Answer, list[str]]] = {}
        self._faults: dict[str, deque[_Fault]] = {}
        self._late: list[Parameters] = []
        self._lock = threading.Lock()
        self._released = threading.Event()
        """Ends the wait of calls that are never answered."""

    def release(self) -> None:
        """Give up what is never answered."""
        self._released.set()

    def refuse(self, action: str, code: str, message: str = "refused", *, status: int = 400, times: int = 1) -> None:
        """The next calls of an action are refused."""
        answer = Refusal(code, message, status).answer
        self._add(action, lambda _: answer, times)

    def lose_answer(self, action: str, times: int = 1) -> None:
        """The next calls of an action have their effect, but no answer."""

        def play(parameters: Parameters) -> Answer | None:
            self._execute(parameters)
            return None

        self._add(action, play, times)

    def never_answer(self, action: str) -> None:
        """The next call of an action has its effect, and its connection stays open without an answer."""

        def play(parameters: Parameters) -> Answer | None:
            self._execute(parameters)
            self._released.wait(AMPLE_SECONDS)
            return None

        self._add(action, play, 1)

    def delay_call(self, action: str) -> None:
        """The next call of an action gets no answer, and has its effect only with `deliver_late`."""

        def play(parameters: Parameters) -> Answer | None:
            self._late.append(parameters)
            return None

        self._add(action, play, 1)

    def deliver_late(self) -> list[int]:
        """Calls that were delayed have their effect now; return the statuses of their answers."""
        late, self._late = self._late, []
        return [self._execute(each).status for each in late]

    def launch_short(self, fewer: int) -> None:
        """The next launch makes so many instances fewer than it was asked for."""

        def play(parameters: Parameters) -> Answer | None:
            count = str(int(parameters["MaxCount"]) - fewer)
            return self._execute({**parameters, "MinCount": count, "MaxCount": count})

        self._add("RunInstances", play, 1)

    def end(self, ec2_id: str, reason: str) -> None:
        """An instance ends by itself, for this reason."""
        self.emulator.client.terminate_instances(InstanceIds=[ec2_id])
        self._ended(ec2_id, (reason, f"{reason}: it ended"))

    def count(self, action: str) -> int:
        """Return how many calls of an action there were."""
        return sum(call.action == action for call in self.calls)

    @property
    def alive(self) -> Mapping[str, int]:
        """How many instances have not ended, by type."""
        return Counter(each.instance_type for each in self._machines.values() if each.ended_at is None)

    @property
    def made(self) -> int:
        """How many instances there ever were."""
        return len(self._machines)

    def answer(self, parameters: Parameters) -> Answer | None:
        """Answer one request; None where nothing is to be sent."""
        if self.away:
            return None
        action = parameters["Action"]
        call = Call(self._clock(), action, parameters)
        self.calls.append(call)
        if not self.limits.take(call.action, call.instances, call.seconds):
            self.throttled += 1
            return Refusal("RequestLimitExceeded", "Request limit exceeded.", 503).answer
        faults = self._faults.get(action)
        if faults:
            return faults.popleft().play(parameters)
        answer = self._execute(parameters)
        if self.answers_left is not None and not action.startswith("Describe"):
            self.answers_left -= 1
            if self.answers_left < 0:
                return None
        return answer

    def _add(self, action: str, play: Callable[[Parameters], Answer | None], times: int) -> None:
        self._faults.setdefault(action, deque()).extend([_Fault(play)] * times)

    def _execute(self, parameters: Parameters) -> Answer:
        with self._lock:
            try:
                match parameters["Action"]:
                    case "RunInstances":
                        return self._run(parameters)
                    case "TerminateInstances":
                        return self._terminate(parameters)
                    case "DescribeInstances":
                        return self._describe(parameters)
                    case _:
                        return self._forward(parameters)
            except Refusal as refusal:
                return refusal.answer

    def _run(self, parameters: Parameters) -> Answer:
        token = parameters["ClientToken"]
        own = {key: value for key, value in parameters.items() if not _OF_EACH_TRY.match(key)}
        if token in self._tokens:
            before, answer, ids = self._tokens[token]
            if before != own:
                raise Refusal("IdempotentParameterMismatch", "Arguments on this idempotent request are inconsistent")
            if all(self._machines[each].ended_at is not None for each in ids):
                raise Refusal("IdempotentInstanceTerminated", "The instance of this client token has been terminated")
            return answer
        machine = self._bought(parameters)
        answer = self._forward(parameters)
        if answer.status == 200:
            ids = _ID.findall(answer.body.decode())
            self._tokens[token] = (own, answer, ids)
            self._draw(machine, len(ids))
            created_at = self._clock()
            for each in ids:
                self._machines[each] = _Machine(*machine, created_at)
        return answer

    def _bought(self, parameters: Parameters) -> tuple[str, str, str | None]:
        """Return type, zone and reservation of a launch. Raises Refusal where there are too few of them."""
        count, instance_type = int(parameters["MinCount"]), parameters["InstanceType"]
        subnet = parameters.get("SubnetId")
        zone = self._zones.get(subnet) if subnet else parameters["Placement.AvailabilityZone"]
        if zone is None:
            raise Refusal("InvalidSubnetID.NotFound", f"The subnet ID '{subnet}' does not exist")
        reservation = parameters.get("CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId")
        if code := self.cloud.refused.get((instance_type, zone)):
            raise Refusal(code, "as the test has it")
        if reservation is not None:
            if count > self.cloud.reservations.get(reservation, 0):
                raise Refusal(
                    "ReservationCapacityExceeded", "The requested reservation does not have sufficient capacity"
                )
        elif count > self.cloud.stock.get((instance_type, zone), count):
            text = f"We currently do not have sufficient {instance_type} capacity in {zone}"
            raise Refusal("InsufficientInstanceCapacity", text, 500)
        standing = sum(VCPUS.get(each.instance_type, 2) for each in self._machines.values() if each.ended_at is None)
        quota = self.cloud.vcpu_quota
        if quota is not None and standing + count * VCPUS.get(instance_type, 2) > quota:
            raise Refusal(
                "VcpuLimitExceeded", f"You have requested more vCPU capacity than your current limit of {quota}"
            )
        return instance_type, zone, reservation

    def _draw(self, machine: tuple[str, str, str | None], count: int) -> None:
        instance_type, zone, reservation = machine
        if reservation is not None:
            self.cloud.reservations[reservation] -= count
        elif (instance_type, zone) in self.cloud.stock:
            self.cloud.stock[instance_type, zone] -= count

    def _terminate(self, parameters: Parameters) -> Answer:
        ids = [value for key, value in parameters.items() if key.startswith("InstanceId.")]
        unknown = [each for each in ids if not self._visible(each)]
        if unknown:
            raise Refusal("InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(unknown)}' do not exist")
        answer = self._forward(parameters)
        for each in ids:
            self._ended(each, None)
        return answer

    def _ended(self, ec2_id: str, reason: tuple[str, str] | None) -> None:
        machine = self._machines[ec2_id]
        if machine.ended_at is None:
            machine.ended_at = self._clock()
            machine.reason = reason or machine.reason
            self._draw((machine.instance_type, machine.zone, machine.reservation), -1)

    def _visible(self, ec2_id: str) -> bool:
        machine, now = self._machines.get(ec2_id), self._clock()
        if machine is None:  # made past the proxy
            return ec2_id in self._strangers()
        if now < machine.created_at + self.cloud.visible_after_seconds:
            return False
        return machine.ended_at is None or now < machine.ended_at + _TERMINATED_SHOWN_SECONDS

    def _strangers(self) -> AbstractSet[str]:
        return self.emulator.alive() - self._machines.keys()

    def _describe(self, parameters: Parameters) -> Answer:
        size = self.cloud.page_size
        answer = self._forward({**parameters, "MaxResults": str(size)} if size is not None else parameters)
        if answer.status != 200:
            return answer
        root = ET.fromstring(answer.body)  # moto's own
        for reservations in root.iter(f"{{{_NAMESPACE}}}reservationSet"):
            for instances in reservations.iter(f"{{{_NAMESPACE}}}instancesSet"):
                for instance in list(instances):
                    ec2_id = instance.findtext(f"{{{_NAMESPACE}}}instanceId", "")
                    if ec2_id not in self._machines:  # made past the proxy
                        continue
                    if self._visible(ec2_id):
                        self._show(instance, self._machines[ec2_id])
                    else:
                        instances.remove(instance)
        return Answer(200, ET.tostring(root))

    def _show(self, instance: ET.Element, machine: _Machine) -> None:
        now = self._clock()
        if machine.ended_at is not None:
            name = "shutting-down" if now < machine.ended_at + self.cloud.shutdown_seconds else "terminated"
        else:
            name = "pending" if now < machine.created_at + self.cloud.boot_seconds else "running"
        _set_text(instance, ("instanceState", "name"), name)
        _set_text(instance, ("launchTime",), datetime.fromtimestamp(machine.created_at, UTC).isoformat())
        if machine.ended_at is not None:
            _set_text(instance, ("stateReason", "code"), machine.reason[0])
            _set_text(instance, ("stateReason", "message"), machine.reason[1])

    def _forward(self, parameters: Parameters) -> Answer:
        body = urlencode(parameters).encode()
        # moto tells services and regions apart by the signature's scope.
        scope = "Credential=x/20260101/eu-central-1/ec2/aws4_request"
        headers = {
            "Content-Type": "application/x-www-form-urlencoded; charset=utf-8",
            "Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0",
        }
        try:
            with urlopen(Request(self.emulator.url + "/", body, headers), timeout=AMPLE_SECONDS) as response:
                return Answer(response.status, response.read())
        except HTTPError as error:
            return Answer(error.code, error.read())


def _set_text(element: ET.Element, names: tuple[str, ...], text: str) -> None:
    for name in names:
        found = element.find(f"{{{_NAMESPACE}}}{name}")
        element = found if found is not None else ET.SubElement(element, f"{{{_NAMESPACE}}}{name}")
    element.text = text


def _handler(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = proxy.answer(dict(parse_qsl(body.decode(), keep_blank_values=True)))
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
