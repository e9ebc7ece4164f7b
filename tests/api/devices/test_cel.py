"""CEL over devices: what Kubernetes' selectors mean, and what hostile ones cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cagrpc.api.devices import cel
from cagrpc.api.devices.cel import MOST_STEPS, Expression, ExpressionFailed, UnusableExpression
from cagrpc.api.devices.objects import Device, SemanticVersion

GPU = Device(
    "gpu.example.com",
    "gpu-0",
    "node-1",
    attributes=(
        ("gpu.example.com/cores", 108),
        ("gpu.example.com/ecc", True),
        ("gpu.example.com/model", "A100"),
        ("gpu.example.com/version", SemanticVersion("1.2.3")),
        ("resource.kubernetes.io/pcieRoot", "pci0000:00"),
    ),
    capacity=(("gpu.example.com/memory", "40Gi"),),
)
OWN = 'device.attributes["gpu.example.com"]'


def matches(text: str, device: Device = GPU) -> bool:
    return Expression(text).matches(device)


@pytest.mark.parametrize(
    "text",
    [
        'device.driver == "gpu.example.com"',
        f'{OWN}.model == "A100"',
        f'{OWN}["model"].lowerAscii() == "a100"',
        f'{OWN}.model.matches("^A[0-9]+$")',
        f'{OWN}.model in ["A100", "H100"]',
        f"{OWN}.cores >= 100 && {OWN}.ecc",
        f"{OWN}.cores < 108.5",
        f"{OWN}.model != 100 && !({OWN}.model == 100)",
        f'{OWN}.version.isGreaterThan(semver("1.2.0")) && {OWN}.version.major() == 1',
        f'{OWN}.version.compareTo(semver("v1.2.3", true)) == 0 && !isSemver("v1")',
        'semver("1.0.0-alpha.2").isLessThan(semver("1.0.0-alpha.10"))',
        'semver("1.0.0-rc").isLessThan(semver("1.0.0"))',
        'device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) == 0',
        'device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("42G"))',
        'quantity("50k").add(20).sub(quantity("20k")).asInteger() == 30020',
        'isQuantity("1.5G") && !isQuantity("1,5G")',
        f'cel.bind(own, {OWN}, own.ecc && own.model.startsWith("A"))',
        '"memory" in device.capacity["gpu.example.com"] && !("memory" in device.capacity["other.example.com"])',
        f"has({OWN}.model) && !has({OWN}.serial)",
        f'{OWN}.exists(name, name == "model")',
        '"resource.kubernetes.io" in device.attributes && !("other.example.com" in device.attributes)',
        f'device.attributes["other.example.com"].model == "x" || {OWN}.ecc',
        "!device.allowMultipleAllocations",
        f'{OWN}.model.includes("A100")',
        "[1, 2, 3].filter(n, n > 1).all(n, n in [2, 3])",
    ],
)  # fmt: skip
def test_true_of_the_device(text: str) -> None:
    assert matches(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('device.attributes["other.example.com"].model == "x"', "no such member"),
        (f"!has({OWN}.serial.part)", "no such member"),  # only the last member may be missing
        (f"{OWN}.cores", "no condition"),
        ('quantity("40Gb").sign() == 1', "overflow"),
        (f'{OWN}.model.matches("(a")', "overflow"),
        (f"{OWN}.model < 3", "no matching overload"),
        ("1 / 0 == 1", "zero"),
    ],
)
def test_without_an_answer_as_the_scheduler_has_none(text: str, why: str) -> None:
    with pytest.raises(ExpressionFailed, match=why):
        matches(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("device.driver ==", "line 1, column"),
        ("device.driver.sort()", r"calls sort\(\)"),
        ("[1].reduce(a, b, 0, a + b) == 1", r"calls reduce\(\)"),  # cel-python has it, Kubernetes has not
        ("(" * 2000 + "true" + ")" * 2000, "nested too deeply|cannot be read"),
        ("true || " * 2000 + "true", "bytes"),
    ],
)
def test_unusable(text: str, why: str) -> None:
    with pytest.raises(UnusableExpression, match=why):
        matches(text)


def _bound(times: int) -> str:
    """A value that doubles with each binding."""
    text = f"v{times} == v{times}"
    for n in reversed(range(times)):
        text = f"cel.bind(v{n + 1}, v{n} + v{n}, {text})"
    return f'cel.bind(v0, "xxxxxxxxxxxxxxxx", {text})'


def _lists(times: int) -> str:
    text = f"v{times} == v{times}"
    for n in reversed(range(times)):
        text = f"cel.bind(v{n + 1}, [v{n}, v{n}], {text})"
    return f"cel.bind(v0, [1], {text})"


NUMBERS = f"[{', '.join(map(str, range(100)))}]"


@pytest.mark.parametrize(
    "text",
    [
        _bound(14),
        _lists(14),
        f"{NUMBERS}.all(a, {NUMBERS}.all(b, {NUMBERS}.all(c, a + b + c >= 0)))",
        f"{NUMBERS}.map(a, {NUMBERS}.map(b, {NUMBERS})) == []",
    ],
    ids=("doubled text", "shared lists", "nested loops", "large lists"),
)
def test_a_hostile_expression_costs_a_bounded_number_of_steps_once(text: str) -> None:
    expression = Expression(text)
    with pytest.raises(UnusableExpression, match=f"more than {MOST_STEPS} steps"):
        expression.matches(GPU)
    assert expression.steps <= 2 * MOST_STEPS
    spent = expression.steps
    with pytest.raises(UnusableExpression, match="more than"):
        expression.matches(replace(GPU, driver="other.example.com"))
    assert expression.steps == spent


def test_devices_that_differ_in_what_is_not_read_cost_one_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[Device] = []
    evaluate = Expression._evaluate

    def counted(self: Expression, device: Device) -> object:
        evaluated.append(device)
        return evaluate(self, device)

    monkeypatch.setattr(Expression, "_evaluate", counted)
    expression = Expression(f'device.driver == "gpu.example.com" && has({OWN}.model) && {OWN}.model == "A100"')
    for serial in range(20):
        device = replace(GPU, name=f"gpu-{serial}", attributes=(*GPU.attributes, ("gpu.example.com/uuid", f"{serial}")))
        assert expression.matches(device)
    assert len(evaluated) == 1
    assert not expression.matches(replace(GPU, attributes=(("gpu.example.com/model", "H100"),)))
    assert not expression.matches(replace(GPU, attributes=(("gpu.example.com/ecc", True),)))
    assert not expression.matches(replace(GPU, driver="other.example.com"))
    assert len(evaluated) == 4
    whole = Expression(f"{OWN}.exists(name, {OWN}[name] == true)")
    assert whole.matches(GPU)
    assert not whole.matches(replace(GPU, attributes=GPU.attributes[:1]))


def test_kinds_of_values_are_told_apart_in_memory() -> None:
    expression = Expression(f"{OWN}.flag == true")
    assert not expression.matches(replace(GPU, attributes=(("gpu.example.com/flag", 1),)))
    assert expression.matches(replace(GPU, attributes=(("gpu.example.com/flag", True),)))
    assert not expression.matches(replace(GPU, attributes=(("gpu.example.com/flag", "true"),)))
    assert cel.LONGEST_EXPRESSION == 10_240  # as the API server has it
