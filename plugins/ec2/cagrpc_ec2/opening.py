"""Open the EC2 backend: make a client of boto3, and verify what can be verified of launch templates before the first
order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from cagrpc.backends.plugin import START_UP_TAINT, BackendContext, OpenBackend
from cagrpc.errors import InvalidConfiguration
from cagrpc_ec2.api import Ec2Api
from cagrpc_ec2.backend import Ec2Backend
from cagrpc_ec2.faults import ApiError
from cagrpc_ec2.parameters import AllParameters, LaunchTemplate
from cagrpc_ec2.rates import CallRates, TokenRate, documented_rates
from cagrpc_ec2.templates import TemplateUse, sets_start_up_taint, template_problems
from solver.model import NodeGroup

_log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0
"""A launch of 1,000 instances takes its time."""


def open_backend(
    context: BackendContext,
    *,
    cluster_name: str,
    region: str | None,
    endpoint_url: str | None,
    launched_instances: TokenRate,
    parameters: AllParameters,
    groups: Sequence[NodeGroup],
    sleep: Callable[[float], None] = time.sleep,
    read_seconds: float = READ_SECONDS,
) -> OpenBackend:
    """Open the backend. Raises `InvalidConfiguration` with every problem that the launch templates of `groups` have,
    and `Unavailable`."""
    client = _client(region, endpoint_url, read_seconds)
    try:
        api = Ec2Api(client, CallRates(documented_rates(launched_instances), context.clock, sleep))
        _verify_templates(api, parameters, groups, has_cluster=context.client is not None)
        return OpenBackend(Ec2Backend(api, cluster_name, parameters, context.clock), client.close)
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
