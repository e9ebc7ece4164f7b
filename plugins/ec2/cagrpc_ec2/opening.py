"""Open the EC2 backend: make a client of boto3, and verify what can be read of launch templates before the first order.
A template may be changed later, so this finds mistakes at the start and promises nothing; user data may hold secrets
and is never shown."""

from __future__ import annotations

import base64
import binascii
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from cagrpc.backends.plugin import START_UP_TAINT, BackendContext, OpenBackend
from cagrpc.errors import InvalidConfiguration
from cagrpc_ec2.api import Ec2Api
from cagrpc_ec2.backend import Ec2Backend
from cagrpc_ec2.faults import ApiError
from cagrpc_ec2.parameters import ON_DEMAND, AllParameters, LaunchTemplate, capacity_type, is_karpenters
from cagrpc_ec2.plugin import Ec2Settings
from cagrpc_ec2.rates import CallRates, documented_rates
from solver.model import NodeGroup

_log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
"""A launch of 1,000 instances takes its time."""


def open_backend(
    settings: Ec2Settings,
    context: BackendContext,
    *,
    sleep: Callable[[float], None] = time.sleep,
    read_seconds: float = READ_SECONDS,
) -> OpenBackend:
    """Open the backend. Raises `InvalidConfiguration` with every problem that the launch templates of its node groups
    have, and `Unavailable`."""
    client = _client(settings.region, settings.endpoint_url, read_seconds)
    try:
        api = Ec2Api(client, CallRates(documented_rates(settings.launched_instances), context.clock, sleep))
        _verify_templates(api, settings.parameters, settings.groups, has_cluster=context.client is not None)
        return OpenBackend(Ec2Backend(api, settings.cluster_name, settings.parameters, context.clock), client.close)
    except BaseException:
        client.close()
        raise


def _client(region: str | None, endpoint_url: str | None, read_seconds: float) -> Any:
    _quieten_libraries()
    # One attempt a call: repeating is the fleet's, and call rates are ours.
    once = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=read_seconds,
        retries={"total_max_attempts": 1, "mode": "standard"},
        user_agent_extra="cagrpc",
    )
    try:
        return boto3.client("ec2", region_name=region, endpoint_url=endpoint_url, config=once)
    except (BotoCoreError, ValueError) as error:
        raise InvalidConfiguration([f"backend.ec2: {error}"]) from error


def _quieten_libraries() -> None:
    """Let boto3 and botocore log warnings alone, and with `debug` what they inform of; what botocore logs for debugging
    has the bodies of calls, and so templates' user data, which may hold secrets."""
    debugging = logging.root.isEnabledFor(logging.DEBUG)
    level = logging.INFO if debugging else max(logging.WARNING, logging.root.level)
    for library in ("boto3", "botocore"):
        logging.getLogger(library).setLevel(level)


def _verify_templates(
    api: Ec2Api, parameters: AllParameters, groups: Sequence[NodeGroup], *, has_cluster: bool
) -> None:
    """Raise `InvalidConfiguration` for templates that cannot work; warn of those that seem not to set the taint."""
    problems = []
    for template, use in _uses(parameters, groups).items():
        try:
            data = api.launch_template_data(template.request)
        except ApiError as error:
            problems.append(f"backend.ec2: launch template {template}: {error}")
            continue
        problems += [f"backend.ec2: launch template {template} {each}" for each in template_problems(data, use)]
        if has_cluster and not sets_start_up_taint(data):
            _log.warning(
                "launch template %s: its user data seems not to have the taint %s; unless the image registers nodes "
                "with it, pods start before their increment is whole",
                template,
                START_UP_TAINT,
            )
    if problems:
        raise InvalidConfiguration(problems)


def _uses(parameters: AllParameters, groups: Sequence[NodeGroup]) -> Mapping[LaunchTemplate, TemplateUse]:
    of_template: dict[LaunchTemplate, list[NodeGroup]] = {}
    with_subnets = set()
    for group in groups:
        own = parameters.of(group)
        if own.launch_template is not None:
            of_template.setdefault(own.launch_template, []).append(group)
            if own.subnets is not None:
                with_subnets.add(own.launch_template)
    return {template: TemplateUse(tuple(found), template in with_subnets) for template, found in of_template.items()}


_MOST_USER_DATA_BYTES = 1_000_000
"""Of user data that was compressed; EC2 takes 16 KiB."""


@dataclass(frozen=True, slots=True)
class TemplateUse:
    """What a launch template is used for."""

    groups: tuple[NodeGroup, ...]
    chooses_subnets: bool
    """Whether launches name a subnet."""


def template_problems(data: Mapping[str, Any], use: TemplateUse) -> Iterator[str]:
    """Yield why launches with a template's content would be refused, or be other than ordered."""
    if not data.get("ImageId"):
        yield "has no image (ImageId)"
    if data.get("NetworkInterfaces") and use.chooses_subnets:
        yield (
            "has network interfaces, beside which EC2 takes no subnet; put their subnet into the template and leave "
            "out subnets, or put the security groups into SecurityGroupIds"
        )
    market = (data.get("InstanceMarketOptions") or {}).get("MarketType")
    bought = [group.id for group in use.groups if capacity_type(group) == ON_DEMAND]
    if market and bought:
        yield f'has market type "{market}", which node groups on demand would be launched with: {", ".join(bought[:3])}'
    for specification in data.get("TagSpecifications", ()):
        for tag in specification.get("Tags", ()):
            if is_karpenters(str(tag.get("Key", ""))):
                yield f'has the tag "{tag["Key"]}", by which Karpenter would terminate the instances as its own'


def sets_start_up_taint(data: Mapping[str, Any]) -> bool:
    """Return whether the taint is in the user data, as far as it can be read. It may be in the image as well."""
    try:
        content = base64.b64decode(data.get("UserData") or "", validate=False)
        if content.startswith(b"\x1f\x8b"):
            content = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(content, _MOST_USER_DATA_BYTES)
    except (binascii.Error, zlib.error):
        return False
    return START_UP_TAINT.encode() in content
