"""The calls of EC2's API that the backend makes, at its call rates, over a client of boto3. Every error becomes an
`ApiError`, which is definite, or `errors.Unavailable`, after which the call is to be repeated. What they are for is in
`backend`; `deploy/iam-policy-ec2.json` allows them and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from cagrpc import errors
from cagrpc_ec2.faults import ApiError, api_error, is_throttled, readable
from cagrpc_ec2.rates import CallRates

_PAGE = 1000
"""Instances of one page, the most that the API gives."""


class Ec2Api:
    """For one thread. `client` retries nothing by itself, so that call rates are kept."""

    def __init__(self, client: Any, rates: CallRates) -> None:
        self._client = client
        self._rates = rates

    def run_instances(self, request: Mapping[str, Any]) -> int:
        """Launch; return how many instances the answer has."""
        answer = self._call("RunInstances", self._client.run_instances, request, instances=request["MaxCount"])
        return len(answer.get("Instances", ()))

    def describe_instances(self, tags: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        """Yield the instances with these tags, also those that ended within the hour."""
        filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()]
        request = {"Filters": filters, "MaxResults": _PAGE}
        while True:
            answer = self._call("DescribeInstances", self._client.describe_instances, request)
            for reservation in answer.get("Reservations", ()):
                yield from reservation.get("Instances", ())
            if not answer.get("NextToken"):
                return
            request = {**request, "NextToken": answer["NextToken"]}

    def terminate_instances(self, instance_ids: Sequence[str]) -> None:
        """Terminate these, at most 1,000; those that have ended are left as they are. One that is unknown or protected
        keeps all others from being terminated."""
        request = {"InstanceIds": list(instance_ids)}
        self._call("TerminateInstances", self._client.terminate_instances, request, instances=len(instance_ids))

    def launch_template_data(self, template: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the content of a launch template, given as in a launch."""
        request: dict[str, Any] = {key: value for key, value in template.items() if key != "Version"}
        request["Versions"] = [template["Version"]]
        call = self._client.describe_launch_template_versions
        versions = self._call("DescribeLaunchTemplateVersions", call, request).get("LaunchTemplateVersions", ())
        if not versions:
            raise ApiError("InvalidLaunchTemplateId.VersionNotFound", f"there is no version {template['Version']}")
        data: Mapping[str, Any] = versions[0].get("LaunchTemplateData", {})
        return data

    def _call(self, action: str, call: Any, request: Mapping[str, Any], instances: int = 0) -> Mapping[str, Any]:
        self._rates.acquire(action, instances)
        try:
            answer: Mapping[str, Any] = call(**request)
        except ClientError as error:
            stated = error.response.get("Error", {})
            code, message = str(stated.get("Code", "")), str(stated.get("Message", ""))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            if is_throttled(code):
                self._rates.throttled(action)
            definite = api_error(code, message, status)
            if definite is None:
                raise errors.Unavailable(f"EC2: {action}: {code}: {readable(message)}") from None
            raise definite from None
        except ParamValidationError as error:
            raise ApiError("ParamValidationError", readable(str(error))) from None
        except BotoCoreError as error:  # no connection, no answer, no credentials
            raise errors.Unavailable(f"EC2: {action}: {readable(str(error))}") from None
        return answer
