"""Bodies are measured before they are decoded: exactly, and at the price of a few passes of C."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.errors import AntiphonError, InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.decoding import json_bounds
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.decoding.json_bounds import check_bounds
from tests.support.cpu import cpu_time, slowness

MEBIBYTE = 1024 * 1024
TIGHT = Limits(structural_bytes=12, json_depth=3)
SMALL = Limits(structural_bytes=10_000, json_depth=1)  # for what is surely small enough


def measure(text: bytes) -> tuple[int, int]:
    """Structure and depth outside of strings, byte by byte."""
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


def verdict(body: bytes, limits: Limits) -> str:
    try:
        check_bounds(body, limits)
    except InvalidValue as error:
        return "too deep" if "nested" in error.message else "too much"
    return "fine"


def expected(body: bytes, limits: Limits) -> str:
    count, depth = measure(body)
    if count > limits.structural_bytes:
        return "too much"
    return "too deep" if depth > limits.json_depth else "fine"


texts = st.text(st.sampled_from('a"\\[]{},:\n\u00e9\0\t/'), max_size=12)
documents = st.recursive(
    texts | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def strings(pieces: list[str]) -> bytes:
    return b"[" + b",".join(b'"%b"' % piece.encode() for piece in pieces) + b"]"


@given(st.lists(st.lists(st.sampled_from([r"\\", r"\"", r"\n", "a", "[", ","]), max_size=9).map("".join), max_size=6))
@example([r"\\\"" * 3, "[" * 9])
def test_escapes_are_seen_through_wherever_the_slices_fall(pieces: list[str]) -> None:
    body = strings(pieces)
    assert verdict(body, SMALL) == expected(body, SMALL)
    limits = Limits(structural_bytes=5, json_depth=1)
    for size in (2, 3, 5, 8, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(json_bounds, "_SLICE", size)
            patch.setattr(json_bounds, "_ROOM", 1000)
            assert verdict(body, limits) == expected(body, limits)


@pytest.mark.parametrize("piece", [b"1", b" ", b"1 "])
def test_numbers_and_blanks_without_end_are_refused(piece: bytes) -> None:
    assert verdict(b'{"input":' + piece * 10_000_000 + b"}", Limits()) == "too much"
    assert verdict(b'{"input":' + piece * 1_000_000 + b"}", Limits()) == "fine"


@given(documents, st.integers(1, 8), st.integers(1, 30) | st.just(10_000), st.sampled_from([2, 3, 7, 64, 1000]))
@example({"a": "[[[[\\"}, 1, 30, 2)
@example(['\\"', "\\\\", '"'], 1, 30, 3)
def test_structure_and_depth_are_exact_wherever_the_slices_fall(
    document: Any, depth: int, count: int, size: int
) -> None:
    limits = Limits(structural_bytes=count, json_depth=depth)
    body = json.dumps(document, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bounds, "_SLICE", size)
        patch.setattr(json_bounds, "_ROOM", 1000)
        assert verdict(body, limits) == expected(body, limits)


@given(st.binary(max_size=60) | st.text(st.sampled_from('"\\[]{},:a'), max_size=60).map(str.encode))
def test_text_that_is_no_json_never_breaks_the_measuring(body: bytes) -> None:
    assert verdict(body, TIGHT) in ("fine", "too much", "too deep")


def test_brackets_inside_strings_do_not_count() -> None:
    assert verdict(json.dumps({"a": "[" * 1000 + "," * 1000}).encode(), TIGHT) == "fine"
    assert verdict(json.dumps({"a": 'say \\"[[[[" ' + "[" * 1000}).encode(), TIGHT) == "fine"


def test_depth_is_allowed_up_to_the_limit_and_no_further() -> None:
    assert verdict(b"[" * 3 + b"]" * 3, TIGHT) == "fine"
    assert verdict(b"[" * 4 + b"]" * 4, TIGHT) == "too deep"
    assert verdict(b'{"a":' * 3 + b"1" + b"}" * 3, TIGHT) == "fine"
    assert verdict(b'{"a":' * 4 + b"1" + b"}" * 4, TIGHT) == "too deep"


def test_what_is_part_of_something_has_the_levels_above_it() -> None:
    check_bounds(b'[["[", "]"]]', TIGHT, above=1)
    with pytest.raises(InvalidValue, match="deeper than 3"):
        check_bounds(b'[["[", "]"]]', TIGHT, above=2)


@pytest.mark.shows("H6.4")
def test_a_hundred_thousand_brackets_are_refused_whether_they_are_closed_or_not() -> None:
    for body in (b"[" * 100_000, b"[" * 90_000 + b"]" * 90_000, b'{"input":' + b"[" * 100_000):
        with pytest.raises(InvalidValue):
            decode_create(body, Limits())


def in_string(piece: bytes, size: int) -> bytes:
    return b'{"input":"' + piece * (size // len(piece)) + b'"}'


def quoted_json() -> bytes:
    return json.dumps(json.dumps([{"name": f"value {n}", "list": [1, {"a": "b\nc"}]} for n in range(50)])).encode()[
        1:-1
    ]


def many_parts(items: int, count: int) -> bytes:
    content = b"[" + b'{"type":"input_text","text":""},' * (count - 1) + b'{"type":"input_text","text":""}]'
    return b'{"input":[' + (b'{"role":"user","content":' + content + b"},") * items + b'{"role":"user","content":""}]}'


SHAPES: dict[str, Any] = {
    "one string": lambda size: in_string(b"A", size),
    "escaped backslashes": lambda size: in_string(rb"\\", size),
    "escaped quotes": lambda size: in_string(rb"\"", size),
    "line breaks": lambda size: in_string(rb"\n", size),
    "escaped characters": lambda size: in_string(rb"\u4e2d", size),
    "three-byte characters": lambda size: in_string("中".encode(), size),
    "brackets in a string": lambda size: in_string(b"[{,", size),
    "prose": lambda size: in_string(b"Hello, world: this {is} [text], and more words follow. \\n", size),
    "JSON in a string": lambda size: in_string(quoted_json(), size),
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
    "as many parts as fit": lambda size: many_parts(16, 2_000),
    "as many tools as fit": lambda size: b'{"input":"","tools":[' + b'{"type":"local_shell"},' * 60_000 + b"1]}",
    "a long unknown word": lambda size: b'{"truncation":"' + b"A" * size + b'"}',
    "a long unknown type": lambda size: b'{"input":[{"type":"' + b"A" * size + b'"}]}',
    "a long unknown name": lambda size: b'{"' + b"A" * size + b'":1}',
}  # fmt: skip


def cpu_seconds(body: bytes) -> float:
    """What it takes to read `body`, or to say what is wrong with it."""
    refusal = None
    with cpu_time() as spent:
        try:
            decode_create(body, Limits())
        except AntiphonError as error:
            refusal = error
    assert refusal is None or (refusal.status == 400 and len(refusal.message) < 2000)
    return spent.seconds


@pytest.mark.shows("H6.4", "H6.9")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("size", "bound"), [(MEBIBYTE, 0.100), (20 * MEBIBYTE, 0.300)])
def test_no_body_of_any_shape_blocks_for_long(shape: str, size: int, bound: float) -> None:
    body = SHAPES[shape](size)  # on a quiet machine the worst take 0.05 and 0.13 s; a busy one is asked three times
    assert any(cpu_seconds(body) < bound * slowness() for _attempt in range(3))


def test_measuring_a_small_body_costs_next_to_nothing() -> None:
    body = json.dumps({"model": "m", "input": "x" * 260, "stream": True}).encode()
    limits = Limits()
    with cpu_time() as spent:
        for _ in range(10_000):
            check_bounds(body, limits)
    assert spent.seconds / 10_000 < 10e-6  # 1 µs on a quiet machine
