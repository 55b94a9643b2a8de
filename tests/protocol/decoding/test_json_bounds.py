"""JSON bodies are bounded exactly: their structure before they are decoded, their depth afterwards."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.errors import AntiphonError, InvalidJson, InvalidType, InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.decoding import json_bounds
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.decoding.json_bounds import check_bounds, check_depth
from tests.support.cpu import cpu_timer, measure_slowdown

MEBIBYTE = 1024 * 1024
TIGHT = Limits(structural_bytes=12, json_depth=3)
# for bodies that are too small to exceed the limit of structural bytes
SMALL = Limits(structural_bytes=10_000, json_depth=1)


def measure(text: bytes) -> tuple[int, int]:
    """Count the structural bytes and the depth outside of strings, byte by byte."""
    count = depth = deepest = 0
    inside = escaped = False
    for byte in text.decode(errors="replace"):
        if inside:
            inside = escaped or byte != '"'
            escaped = byte == "\\" and not escaped
        elif byte == '"':
            inside = True
        elif byte in "{}[],:":
            count += 1
            depth += (byte in "{[") - (byte in "}]")
            deepest = max(deepest, depth)
    return count, deepest


def run_check(body: bytes, limits: Limits) -> str:
    try:
        check_bounds(body, limits)
        with suppress(ValueError, RecursionError):
            check_depth(json.loads(body), limits)
    except InvalidValue as error:
        return "too deep" if "nested" in error.message else "too much"
    return "fine"


def compute_expected(body: bytes, limits: Limits) -> str:
    count, depth = measure(body)
    if count > limits.structural_bytes and len(body) > json_bounds.UNCOUNTED_SIZE * limits.structural_bytes:
        return "too much"
    return "too deep" if depth > limits.json_depth else "fine"


texts = st.text(st.sampled_from('a"\\[]{},:\n\u00e9\0\t/'), max_size=12)
documents = st.recursive(
    texts | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def encode_strings(pieces: list[str]) -> bytes:
    return b"[" + b",".join(b'"%b"' % piece.encode() for piece in pieces) + b"]"


@given(st.lists(st.lists(st.sampled_from([r"\\", r"\"", r"\n", "a", "[", ","]), max_size=9).map("".join), max_size=6))
@example([r"\\\"" * 3, "[" * 9])
def test_escapes_are_handled_at_every_slice_boundary(pieces: list[str]) -> None:
    body = encode_strings(pieces)
    assert run_check(body, SMALL) == compute_expected(body, SMALL)
    limits = Limits(structural_bytes=5, json_depth=1)
    for size in (2, 3, 5, 8, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_bounds, "_SLICE", size)
            patch.setattr(json_bounds, "_ROOM", 1000)
            assert run_check(body, limits) == compute_expected(body, limits)


@pytest.mark.parametrize("piece", [b"1", b" ", b"1 "])
def test_endless_numbers_and_blanks_are_rejected(piece: bytes) -> None:
    assert run_check(b'{"input":' + piece * 10_000_000 + b"}", Limits()) == "too much"
    assert run_check(b'{"input":' + piece * 1_000_000 + b"}", Limits()) == "fine"


@given(documents, st.integers(1, 8), st.integers(1, 30) | st.just(10_000), st.sampled_from([2, 3, 7, 64, 1000]))
@example({"a": "[[[[\\"}, 1, 30, 2)
@example(['\\"', "\\\\", '"'], 1, 30, 3)
def test_structure_and_depth_are_exact_at_every_slice_boundary(
    document: Any, depth: int, count: int, size: int
) -> None:
    limits = Limits(structural_bytes=count, json_depth=depth)
    body = json.dumps(document, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bounds, "_SLICE", size)
        patch.setattr(json_bounds, "_ROOM", 1000)
        assert run_check(body, limits) == compute_expected(body, limits)


@given(st.binary(max_size=60) | st.text(st.sampled_from('"\\[]{},:a'), max_size=60).map(str.encode))
def test_measuring_never_fails_on_invalid_json(body: bytes) -> None:
    assert run_check(body, TIGHT) in ("fine", "too much", "too deep")


def test_brackets_inside_strings_do_not_count() -> None:
    assert run_check(json.dumps({"a": "[" * 1000 + "," * 1000}).encode(), TIGHT) == "fine"
    assert run_check(json.dumps({"a": 'say \\"[[[[" ' + "[" * 1000}).encode(), TIGHT) == "fine"


def test_depth_is_allowed_up_to_the_limit_and_no_further() -> None:
    assert run_check(b"[" * 3 + b"]" * 3, TIGHT) == "fine"
    assert run_check(b"[" * 4 + b"]" * 4, TIGHT) == "too deep"
    assert run_check(b'{"a":' * 3 + b"1" + b"}" * 3, TIGHT) == "fine"
    assert run_check(b'{"a":' * 4 + b"1" + b"}" * 4, TIGHT) == "too deep"


@pytest.mark.shows("H6.4")
def test_a_hundred_thousand_brackets_are_rejected_whether_closed_or_not() -> None:
    for body in (b"[" * 100_000, b"[" * 90_000 + b"]" * 90_000, b'{"input":' + b"[" * 100_000):
        with pytest.raises((InvalidValue, InvalidType, InvalidJson)):  # from Python 3.14 on, a stack has room for them
            decode_create(body, Limits())


def wrap_in_string(piece: bytes, size: int) -> bytes:
    return b'{"input":"' + piece * (size // len(piece)) + b'"}'


def make_quoted_json() -> bytes:
    return json.dumps(json.dumps([{"name": f"value {n}", "list": [1, {"a": "b\nc"}]} for n in range(50)])).encode()[
        1:-1
    ]


def make_parts(items: int, count: int) -> bytes:
    content = b"[" + b'{"type":"input_text","text":""},' * (count - 1) + b'{"type":"input_text","text":""}]'
    return b'{"input":[' + (b'{"role":"user","content":' + content + b"},") * items + b'{"role":"user","content":""}]}'


SHAPES: dict[str, Any] = {
    "one string": lambda size: wrap_in_string(b"A", size),
    "escaped backslashes": lambda size: wrap_in_string(rb"\\", size),
    "escaped quotes": lambda size: wrap_in_string(rb"\"", size),
    "line breaks": lambda size: wrap_in_string(rb"\n", size),
    "escaped characters": lambda size: wrap_in_string(rb"\u4e2d", size),
    "three-byte characters": lambda size: wrap_in_string("中".encode(), size),
    "brackets in a string": lambda size: wrap_in_string(b"[{,", size),
    "prose": lambda size: wrap_in_string(b"Hello, world: this {is} [text], and more words follow. \\n", size),
    "JSON in a string": lambda size: wrap_in_string(make_quoted_json(), size),
    "quotes": lambda size: b'"' * size,
    "opening brackets": lambda size: b"[" * size,
    "pairs of brackets": lambda size: b"[]" * (size // 2),
    "backslashes": lambda size: b"\\" * size,
    "commas": lambda size: b"[" + b"1," * (size // 2) + b"1]",
    "small objects": lambda size: b"[" + b'{"a":1},' * (size // 8) + b"1]",
    "empty strings": lambda size: b"[" + b'"",' * (size // 3) + b"1]",
    "spaces": lambda size: b" " * size,
    "digits": lambda size: b"1" * size,
    "as many small objects as allowed": lambda size: b'{"input":[' + b'{"a":1},' * 49_000 + b"1]}",
    "as many numbers as allowed": lambda size: b'{"stop":[' + b"1," * 199_000 + b"1]}",
    "as many strings as allowed": lambda size: b'{"stop":[' + b'"",' * 199_000 + b'""]}',
    "as many items as allowed": lambda size: b'{"input":[' + b'{"role":"user","content":""},' * 9_999 + b"1]}",
    "as many items as fit": lambda size: b'{"input":[' + b'{"role":"user","content":""},' * 30_000 + b"1]}",
    "as many parts as fit": lambda size: make_parts(16, 2_000),
    "as many tools as fit": lambda size: b'{"input":"","tools":[' + b'{"type":"local_shell"},' * 60_000 + b"1]}",
    "a long unknown enum value": lambda size: b'{"truncation":"' + b"A" * size + b'"}',
    "a long unknown type": lambda size: b'{"input":[{"type":"' + b"A" * size + b'"}]}',
    "a long unknown name": lambda size: b'{"' + b"A" * size + b'":1}',
}  # fmt: skip


def measure_decoding(body: bytes) -> float:
    """Return the CPU seconds that it takes to decode or reject `body`."""
    refusal = None
    with cpu_timer() as spent:
        try:
            decode_create(body, Limits())
        except AntiphonError as error:
            refusal = error
    assert refusal is None or (refusal.status == 400 and len(refusal.message) < 2000)
    return spent.seconds


@pytest.mark.shows("H6.4", "H6.9")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("size", "bound"), [(MEBIBYTE, 0.100), (20 * MEBIBYTE, 0.300)])
def test_a_body_of_any_shape_is_decoded_or_rejected_quickly(shape: str, size: int, bound: float) -> None:
    # the worst shapes take 0.05 and 0.13 s on an idle machine; a busy machine has three attempts
    body = SHAPES[shape](size)
    assert any(measure_decoding(body) < bound * measure_slowdown() for _attempt in range(3))


def test_measuring_a_small_body_takes_microseconds() -> None:
    body = json.dumps({"model": "m", "input": "x" * 260, "stream": True}).encode()
    limits = Limits()
    with cpu_timer() as spent:
        for _ in range(10_000):
            check_bounds(body, limits)
    assert spent.seconds / 10_000 < 10e-6  # 1 µs on an idle machine
