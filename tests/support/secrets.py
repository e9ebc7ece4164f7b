"""A v1.Pod with a secret in every field that planning does not read."""

from __future__ import annotations

from cagrpc.api.gen import kubernetes_pb2

SECRET = "hunter2-hunter2"


def _field(number: int, content: bytes) -> bytes:
    """Encode a field of wire type 2, for numbers and lengths of one byte."""
    assert number < 16
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def pod_with_secrets() -> bytes:
    secret = SECRET.encode()
    pod = kubernetes_pb2.Pod()
    pod.metadata.name, pod.metadata.namespace, pod.metadata.uid = "web", "ns", "uid-web"
    pod.metadata.labels["app"] = "web"
    pod.metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"] = f'{{"env": "{SECRET}"}}'
    pod.metadata.annotations["cagrpc.io/gang-min-count"] = "2"
    pod.metadata.managed_fields.append(_field(7, secret))
    pod.metadata.finalizers.append(SECRET)
    pod.metadata.generateName = SECRET
    pod.status.conditions.add(type="PodScheduled", status="False", message=SECRET)
    container = pod.spec.containers.add(name="c")
    container.resources.requests["cpu"].string = "1"
    # Fields of v1.Container that our proto file does not declare: image, command, args, env.
    container.MergeFromString(_field(2, secret) + _field(3, secret) + _field(4, secret))
    container.MergeFromString(_field(7, _field(1, b"PASSWORD") + _field(2, secret)))
    return pod.SerializeToString()
