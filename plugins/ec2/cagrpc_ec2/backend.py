"""The backend over EC2: launches node groups of an increment whole or not at all, lists by tag and terminates. Which
calls an order is made of is in `launches`, what errors mean in `faults`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cagrpc import errors
from cagrpc.fleet.backend import BackendInstance, Listing, Order, Pace
from cagrpc.fleet.model import InstanceState
from cagrpc.runtime.clock import EpochClock
from cagrpc_ec2.api import Ec2Api
from cagrpc_ec2.faults import ApiError, launch_failure, refusal
from cagrpc_ec2.launches import Launch, client_token_of, launches, request, token_of
from cagrpc_ec2.parameters import CLUSTER_TAG, NODE_GROUP_TAG, TOKEN_TAG, AllParameters
from cagrpc_ec2.parameters import problems as launch_problems

_log = logging.getLogger(__name__)

PACE = Pace(list_every_seconds=5.0, absent_after_seconds=120.0)
"""EC2's lists are eventually consistent: a new instance may be missing for a while."""
_LONGEST_ORDER_SECONDS = 5.0
"""After so long the rest of an order is for the fleet's next step, which has other increments too."""
_MOST_ACCEPTED = 100_000
_LARGEST_TERMINATION = 1000
_STATES = {
    "pending": InstanceState.CREATING,
    "running": InstanceState.RUNNING,
    # Somebody else's doing: its Node is not ready, and whoever owns it deletes it.
    "stopping": InstanceState.RUNNING,
    "stopped": InstanceState.RUNNING,
    "shutting-down": InstanceState.DELETING,
}
_INSTANCE_ID = re.compile(r"\bi-[0-9a-f]+\b")


class Ec2Backend:
    """A `cagrpc.fleet.backend.Backend`. Stateless: what it remembers only saves calls, so a restart loses nothing."""

    def __init__(self, api: Ec2Api, cluster_name: str, parameters: AllParameters, clock: EpochClock) -> None:
        self._api = api
        self._cluster_name = cluster_name
        self._parameters = parameters
        self._clock = clock
        self._accepted: dict[str, None] = {}
        """Client tokens of launches that were accepted, the oldest first."""
        self._dismissed: set[str] = set()
        """EC2's ids of failed launches that the fleet has deleted: EC2 goes on listing them for an hour."""
        self._problem: str | None = None

    @property
    def pace(self) -> Pace:
        return PACE

    @property
    def problem(self) -> str | None:
        return self._problem

    def list_instances(self) -> Listing:
        as_of = self._clock()
        described = list(self._describe())
        self._dismissed &= {str(each["InstanceId"]) for each in described}
        described.sort(key=_created)
        found = (self._instance(each) for each in described if each["InstanceId"] not in self._dismissed)
        return Listing(tuple(each for each in found if each is not None), as_of)

    def order(self, order: Order) -> None:
        began_at = self._clock()
        for launch in launches(self._cluster_name, order):
            if order.wanted.isdisjoint(launch.tokens) or launch.client_token in self._accepted:
                continue
            if self._clock() - began_at > _LONGEST_ORDER_SECONDS:
                raise errors.Unavailable(f"EC2: increment {order.increment_id} is ordered in parts, for the call rate")
            self._launch(launch)
            self._accepted[launch.client_token] = None
            if len(self._accepted) > _MOST_ACCEPTED:
                del self._accepted[next(iter(self._accepted))]

    def delete(self, instances: Sequence[BackendInstance]) -> None:
        self._dismissed |= {
            _ec2_id(each.id) for each in instances if each.error is not None and _is_provider_id(each.id)
        }
        ids = [_ec2_id(each.id) for each in instances if _is_provider_id(each.id)]
        unnamed = {each.token for each in instances if not _is_provider_id(each.id)}
        if unnamed:
            ids += [str(each["InstanceId"]) for each in self._describe() if _token(each) in unnamed]
        for start in range(0, len(ids), _LARGEST_TERMINATION):
            self._terminate(list(dict.fromkeys(ids[start : start + _LARGEST_TERMINATION])))

    def _launch(self, launch: Launch) -> None:
        """Launch the instances of one call. Raises `OrderRefused` and `Unavailable`."""
        group, parameters = launch.group, self._parameters.of(launch.group)
        if wrong := launch_problems(group, parameters):
            reasons = "; ".join(f"{field}: {text}" if field else text for field, text in wrong)
            raise errors.OrderMisconfigured(f"node group {group.id}: {reasons}", (group.id,))
        try:
            launched = self._api.run_instances(request(launch, parameters, self._cluster_name))
        except ApiError as error:
            if error.done_before:
                _log.info("node group %s: launched before, as EC2 says: %s", group.id, error)
                return
            if error.concerns_every_order:
                self._problem = str(error)
            raise refusal(error, group.id) from error
        self._problem = None
        if launched != len(launch.tokens):  # what there is has our tags, so it is listed, and deleted by the fleet
            found = f"EC2: {launched} of {len(launch.tokens)} instances were launched"
            raise errors.OutOfCapacity(f"node group {group.id}: {found}", (group.id,))

    def _terminate(self, ids: Sequence[str]) -> None:
        """Terminate instances, but for those that EC2 names in its refusal: one that is unknown has ended long ago, or
        is so new that it is to be asked for again once it is listed. Raises `Unavailable` for any other."""
        refused: ApiError | None = None
        while ids:
            try:
                self._api.terminate_instances(ids)
                break
            except ApiError as error:
                named = set(_INSTANCE_ID.findall(error.message)).intersection(ids)
                if error.code != "InvalidInstanceID.NotFound":
                    refused = error
                if not named:
                    break
                ids = [each for each in ids if each not in named]
        if refused is not None:
            raise errors.Unavailable(f"not terminated: {refused}")

    def _describe(self) -> list[Mapping[str, Any]]:
        """Return every instance of this cluster that was launched here. Raises `Unavailable`."""
        try:
            return [
                each for each in self._api.describe_instances({CLUSTER_TAG: self._cluster_name}) if self._is_own(each)
            ]
        except ApiError as error:
            raise errors.Unavailable(str(error)) from error

    def _is_own(self, described: Mapping[str, Any]) -> bool:
        """Return whether our call launched it: whoever launches "more like this" copies tags, but not client tokens."""
        tags = _tags(described)
        if NODE_GROUP_TAG not in tags or TOKEN_TAG not in tags:
            return False
        expected = client_token_of(self._cluster_name, tags[NODE_GROUP_TAG], tags[TOKEN_TAG])
        return bool(described.get("ClientToken") == expected)

    def _instance(self, described: Mapping[str, Any]) -> BackendInstance | None:
        """Return an instance as the fleet sees it; None for one that has ended."""
        zone, ec2_id = described["Placement"]["AvailabilityZone"], described["InstanceId"]
        state = _STATES.get(described["State"]["Name"])
        reason = described.get("StateReason") or {}
        error = launch_failure(str(reason.get("Code", "")), str(reason.get("Message", "")))
        if state is None and error is None:
            return None
        if state in (InstanceState.RUNNING, InstanceState.CREATING):
            error = None
        elif error is not None:
            state = InstanceState.CREATING
        assert state is not None
        group_id = _tags(described)[NODE_GROUP_TAG]
        return BackendInstance(f"aws:///{zone}/{ec2_id}", _token(described), group_id, state, error)


def _tags(described: Mapping[str, Any]) -> Mapping[str, str]:
    return {each["Key"]: each["Value"] for each in described.get("Tags", ())}


def _token(described: Mapping[str, Any]) -> str:
    return token_of(_tags(described)[TOKEN_TAG], int(described.get("AmiLaunchIndex", 0)))


def _created(described: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return a sort key by order of creation."""
    return str(described.get("LaunchTime", "")), _tags(described)[TOKEN_TAG], int(described.get("AmiLaunchIndex", 0))


def _is_provider_id(instance_id: str) -> bool:
    return instance_id.startswith("aws:///")


def _ec2_id(provider_id: str) -> str:
    return provider_id.rpartition("/")[2]
