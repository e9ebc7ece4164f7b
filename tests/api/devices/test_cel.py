"""CEL over devices: what Kubernetes' selectors mean, and what hostile ones cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
import re2

from cagrpc.api.devices import cel
from cagrpc.api.devices.cel import MOST_STEPS, Expression, ExpressionFailed, UnusableExpression, reading_steps
from cagrpc.api.devices.cel_grammar import parsed, tokens_in
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
        '("A" + "100").matches("A100") && ("a" + "b").split("") + ["c"] == ["a", "b", "c"]',
    ],
)  # fmt: skip
def test_true_of_the_device(text: str) -> None:
    assert matches(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('device.attributes["other.example.com"].model == "x"', "no such member"),
        (f"!has({OWN}.serial.part)", "no such member"),  # only the last member may be missing
        (f"{OWN}.cores", "not a condition"),
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


def _added_lists(times: int) -> str:
    text = f"v{times} == v{times}"
    for n in reversed(range(times)):
        text = f"cel.bind(v{n + 1}, v{n} + v{n}, {text})"
    return f"cel.bind(v0, [1], {text})"


@pytest.mark.parametrize(
    "text",
    [
        _added_lists(20),
        _bound(14),
        _lists(14),
        f"{NUMBERS}.all(a, {NUMBERS}.all(b, {NUMBERS}.all(c, a + b + c >= 0)))",
        f"{NUMBERS}.map(a, {NUMBERS}.map(b, {NUMBERS})) == []",
    ],
    ids=("doubled lists", "doubled text", "shared lists", "nested loops", "large lists"),
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


def _reads(text: str) -> bool:
    try:
        Expression(text)
    except UnusableExpression:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "readable"),
    [
        (r'r"\" == ' + "'" + r"\n" * 400 + "'", True),  # no text begins again at each backslash
        ('"' + r"\n" * 400, False),
        ('"""' + r"\n" * 400 + '""', False),
        ("r'''" + r"\'" * 400 + "''", True),
    ],
)
def test_text_that_does_not_end_is_read_once(text: str, readable: bool) -> None:
    """Two ways to read each character would be two to the power of 400 ways."""
    assert _reads(text) == readable


@pytest.mark.parametrize(
    "text",
    [
        r'"123".matches(r"^\d+$") && "1\n".matches("^\\d+\n$")',
        """'a"b' == "a\\"b" && \"\"\"a"b""c\"\"\" == 'a"b""c' && '''it's''' == "it's" """,
        r'r"\" != "" && R"a\nb" == "a\\nb" && b"a" == b"a"',
        r'"\x41\u0041\101" == "AAA"',
    ],
)
def test_texts_mean_what_they_mean_in_kubernetes(text: str) -> None:
    assert matches(text)


def test_a_tree_is_as_small_as_what_differs_in_its_expression() -> None:
    ones = f"[{','.join(['1'] * 5_000)}]"
    assert len(parsed(ones).nodes()) < 10
    assert tokens_in(ones) == len(ones)
    numbers = f"[{','.join(map(str, range(2_000)))}]"
    assert len(parsed(numbers).nodes()) < tokens_in(numbers)
    for deep in ("!" * 5_000 + "true", "(" * 5_000 + "1" + ")" * 5_000, "1" + "+1" * 5_000, "a" + ".b" * 5_000):
        assert len(parsed(deep).nodes()) <= 2 * tokens_in(deep)


def test_what_reading_takes_is_known_before_and_bounded() -> None:
    assert reading_steps("device.driver") < reading_steps("device.driver == 1") < 50
    assert reading_steps("1," * 100_000) <= 5 * cel.LONGEST_EXPRESSION


@pytest.mark.parametrize("operator", ["||", "&&"])
def test_errors_that_meet_do_not_grow(operator: str) -> None:
    """Each would have told of both others: twice as long with each of them."""
    expression = Expression(operator.join([f"{OWN}.serial"] * 60))
    with pytest.raises(ExpressionFailed, match=r"^no such member in mapping: 'serial'$"):
        expression.matches(GPU)
    assert expression.steps < MOST_STEPS
    folded = "all" if operator == "&&" else "exists"
    with pytest.raises(ExpressionFailed, match=r"^no such member in mapping: 'serial'$"):
        matches(f"{NUMBERS}.{folded}(n, {OWN}.serial)")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (f"{OWN}.serial || true", True),
        (f"true || {OWN}.serial", True),
        (f"!({OWN}.serial && false)", True),
        (f"[1, 2].exists(n, n == 1 ? {OWN}.serial : true)", True),
        (f"!([1, 2].all(n, n == 1 ? {OWN}.serial : false))", True),
        ("[].all(n, n == 1) && !([].exists(n, n == 1))", True),
    ],
)
def test_an_error_does_not_matter_where_the_other_side_decides(text: str, answer: bool) -> None:
    assert matches(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        f'{OWN}.model % 5 == ""',  # to Python a format: "%1000000000d" % 5 is a gigabyte
        'dyn("%1000000000d") % 5 == ""',
        'dyn("%1000000000d") % dyn([5]) == ""',
        'dyn("a") * 1000000000 == ""',
        "dyn([1]) * 1000000000 == []",
        'dyn("a") - 1 == 0',
        'dyn(b"%1000000000d") % 5 == b""',
    ],
)
def test_operators_of_numbers_take_numbers(text: str) -> None:
    with pytest.raises(ExpressionFailed, match="no matching overload"):
        matches(text)


def test_numbers_are_reckoned_with() -> None:
    assert matches("7 % 4 == 3 && 7 / 2 == 3 && 2 * 3 - 1 == 5 && 7.0 / 2.0 == 3.5 && 5u % 3u == 2u")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The patterns that are compiled."""
    found: list[str] = []
    compile_pattern = re2.compile

    def noted(source: str, options: object) -> object:
        found.append(source)
        return compile_pattern(source, options)

    monkeypatch.setattr(re2, "compile", noted)
    return found


@pytest.mark.parametrize(
    "pattern",
    [
        "|".join(rf"\\pL{{0,300}}{number}x" for number in range(60)),
        r"\\pL" * 400,
        "[[:alpha:]]" * 500 + r"(?i)\\pL" * 300,
        "(?:(?:a{1,1000}){0,1}){1,1}" * 300,
    ],
    ids=("repetitions", "classes", "folded classes", "nested repetitions"),
)
def test_patterns_are_charged_before_they_are_compiled(pattern: str, compiled: list[str]) -> None:
    expression = Expression(f'"".matches("{pattern}")')
    with pytest.raises((UnusableExpression, ExpressionFailed)):
        expression.matches(GPU)
    assert not compiled or expression.steps > 1_900


def test_many_patterns_of_one_expression_are_compiled_while_its_steps_last(compiled: list[str]) -> None:
    expression = Expression("||".join(rf'"".matches("\\pL{{0,300}}{number}x")' for number in range(150)))
    with pytest.raises(UnusableExpression):
        expression.matches(GPU)
    assert 0 < len(compiled) <= MOST_STEPS // 64
    assert expression.steps <= MOST_STEPS + 1_000


def test_a_match_is_charged_by_the_length_of_the_text_and_the_size_of_the_pattern() -> None:
    text = f'cel.bind(a, "{"a" * 4_000}", cel.bind(b, a + a, b.matches("{{}}")))'
    small, large = Expression(text.format("b")), Expression(text.format("(?:a?){300}b"))
    assert not small.matches(GPU)
    with pytest.raises(UnusableExpression, match="more than"):
        large.matches(GPU)
    assert small.steps < 4_500


def test_what_is_not_known_is_told_without_what_is_beside_it() -> None:
    with pytest.raises(ExpressionFailed, match=r"^undeclared reference to 'other'$"):
        matches(f"{NUMBERS}.map(n, other) == []")
    with pytest.raises(UnusableExpression, match="makes a message"):
        matches("type{a: 1} == 1")


def test_parentheses_may_be_as_deep_as_anybody_writes_them() -> None:
    assert matches("(" * 50 + "true" + ")" * 50)
