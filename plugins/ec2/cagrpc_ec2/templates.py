"""What can be read of launch templates before anything is launched with them. A template may be changed later, so this
finds mistakes at the start and promises nothing; user data may hold secrets and is never shown.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cagrpc.backends.plugin import START_UP_TAINT
from cagrpc_ec2.parameters import ON_DEMAND, capacity_type, is_karpenters
from solver.model import NodeGroup

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
