"""Bodies that are not JSON, too deep, too large or of the wrong type, and bodies with duplicate names."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from drills.bombs.bomb import Bomb, create_bomb, post_bomb, raw_bomb
from tests.faults.raw_client import build_body, build_request

MIB = 1024 * 1024
DEEP = 100_000
DEPTHS = (65, 1_000, 20_000)


def nested_lists(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


NOT_JSON = {
    "empty": b"",
    "blank": b" \n",
    "text": b"hello",
    "cut": b'{"model": "fake", "input": "h',
    "two values": b"{}{}",
    "trailing comma": b'{"model": "fake",}',
    "single quotes": b"{'model': 'fake'}",
    "comment": b'{"model": "fake" /* x */}',
    "byte order mark": b"\xef\xbb\xbf{}",
    "utf-16": '{"model": "fake"}'.encode("utf-16"),
    "latin-1": b'{"model": "fake", "input": "\xe9"}',
    "overlong utf-8": b'{"model": "fake", "input": "\xc0\xaf"}',
    "surrogate in utf-8": b'{"model": "fake", "input": "\xed\xa0\x80"}',
    "bare control character": b'{"model": "fake", "input": "\x01"}',
    "bad escape": b'{"model": "fake", "input": "\\x41"}',
    "open brackets": b"[" * DEEP,
    "open braces": b'{"a":' * DEEP,
    "closed brackets": nested_lists(DEEP),
}
NOT_OBJECTS = (b"[]", b"null", b"1", b'"text"', b"true")
NESTING_PREFIXES = (
    '{"model":"fake","input":',
    '{"model":"fake","input":"hi","metadata":{"k":',
    '{"model":"fake","input":"hi","unheard_of":{"k":',
    '{"model":"fake","input":"hi","tools":[{"type":"function","name":"f","parameters":{"k":',
    '{"model":"fake","input":[{"type":"message","role":"user","content":',
)
TOO_MUCH: tuple[tuple[dict[str, Any], str], ...] = (
    ({"input": [{"role": "user", "content": "x"}] * 10_001}, "input"),
    ({"tools": [{"type": "function", "name": f"f{n}"} for n in range(513)]}, "tools"),
    ({"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata"),
    ({"metadata": {"k" * 65: "v"}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"metadata": {"k": 1}}, "metadata"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": ["x" * 1_000]}, "stop"),
    ({"model": "m" * 100_000}, "model"),
    ({"safety_identifier": "s" * 100_000}, "safety_identifier"),
    ({"prompt_cache_key": ""}, "prompt_cache_key"),
    ({"tools": [{"type": "function", "name": "f" * 129}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "no spaces"}]}, "tools[0].name"),
    ({"include": ["x"] * 100}, "include"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 2_001}]}, "input[0]"),
    ({"previous_response_id": "r" * 100_000}, "previous_response_id"),
    ({"conversation": "c" * 100_000}, "conversation"),
)
WRONG_VALUES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"input": None, "model": None}, ""),
    ({"model": 7}, "model"),
    ({"input": 7}, "input"),
    ({"input": {"role": "user"}}, "input"),
    ({"input": [7]}, "input[0]"),
    ({"input": [{"type": "no_such_item"}]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": "no_such_part"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user"}]}, "input[0]"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0]"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "no_such_tool"}]}, "tools[0]"),
    ({"tool_choice": "perhaps"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "undeclared"}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    ({"text": {"verbosity": "shouting"}}, "text.verbosity"),
    ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
    ({"reasoning": "high"}, "reasoning"),
    ({"truncation": "maybe"}, "truncation"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"store": "no"}, "store"),
    ({"metadata": []}, "metadata"),
    ({"include": "everything"}, "include"),
    ({"include": ["everything"]}, "include"),
    ({"stop": [1]}, "stop"),
    ({"instructions": 7}, "instructions"),
    ({"chat_template_kwargs": "x"}, "chat_template_kwargs"),
)
# Exceed the limits that apply before a body is decoded.
FLOODS: dict[str, Callable[[], dict[str, Any]]] = {
    "items": lambda: {"input": [{"role": "user", "content": "x"}] * 100_000},
    "tools": lambda: {"tools": [{"type": "function", "name": f"f{n}"} for n in range(100_000)]},
    "metadata": lambda: {"metadata": {f"k{n}": "v" for n in range(100_000)}},
    "empty lists": lambda: {"input": [[]] * 1_000_000},
}


def fill_body(opening: str, piece: str, closing: str, size: int) -> bytes:
    times = (size - len(opening) - len(closing)) // len(piece)
    return (opening + piece * times + closing).encode()


def bodies() -> Iterator[Bomb]:
    yield from [post_bomb(f"not JSON: {name}", sent) for name, sent in NOT_JSON.items()]
    yield from [post_bomb(f"not an object: {sent.decode()}", sent) for sent in NOT_OBJECTS]
    for number, before in enumerate(NESTING_PREFIXES):
        yield from [post_bomb(f"{depth} deep, position {number}", nest_body(before, depth)) for depth in DEPTHS]
    for fields, param in (*TOO_MUCH, *WRONG_VALUES):
        yield create_bomb(f"{next(iter(fields))}: {str([*fields.values()])[:50]}", fields, param=param)
    for name, make in FLOODS.items():
        yield Bomb(name=f"a flood of {name}", make=partial(_make_flood, make), answers=(400, 413))
    yield from _large_bodies()
    yield from _duplicate_names()


def nest_body(before: str, depth: int) -> bytes:
    """Return a body with nested lists. `before`: the JSON in front of them."""
    closing = "".join({"{": "}", "[": "]"}[each] for each in reversed(before) if each in "{[")
    return before.encode() + nested_lists(depth) + closing.encode()


def _large_bodies() -> Iterator[Bomb]:
    for size in (20, 21, 27, 50, 100):
        sent = build_request(b"", headers=[("Content-Length", str(size * MIB + 1))]) + b'{"input":"'
        yield raw_bomb(f"{size} MiB declared", sent, answers=(413,))
    yield Bomb(name="27 MiB sent", make=lambda: build_request(build_body(input="x" * (27 * MIB))), answers=(413,))
    yield Bomb(name="50 MiB in chunks", make=_make_chunks, answers=(413,))
    prefix = '{"model":"fake","max_output_tokens":1,"temperature":7,"input":"'
    for name, opening, piece, closing in (
        ("one string", prefix, "x", '"}'),
        ("escapes", prefix, "\\u0041", '"}'),
        ("quotes", prefix, '\\"', '"}'),
        ("small items", '{"model":"fake","input":[', '{"role":"user","content":"x"},', "7]}"),
        ("empty strings", '{"model":"fake","input":[', '"",', '""]}'),
        ("brackets", "", "[", ""),
        ("numbers", '{"model":"fake","input":[', "1,", "1]}"),
        ("digits", '{"model":"fake","input":', "1", "}"),
    ):
        for size in (MIB, 5 * MIB, 20 * MIB - 1000):
            yield post_bomb(f"{name}, {size // 1000} kB", partial(fill_body, opening, piece, closing, size))


def _make_flood(make: Callable[[], dict[str, Any]]) -> bytes:
    return build_request(build_body(**make()))


def _make_chunks() -> bytes:
    head = build_request(b"", headers=[("Content-Length", ""), ("Transfer-Encoding", "chunked")])
    return head + b'a\r\n{"input":"\r\n' + (b"100000\r\n" + b"x" * MIB + b"\r\n") * 50


def _duplicate_names() -> Iterator[Bomb]:
    """Yield bodies with duplicate names, of which the last one applies."""
    same = b'{"model":"a","input":"one","model":"b","input":"two"}'
    yield post_bomb("names twice", same, answers=(200,), says=b"You said: two", reaches=True)
    off = b'{"model":"fake","input":"hi","store":true,"store":false}'
    yield post_bomb("store twice", off, answers=(200,), says=b'"store":false', reaches=True)
    wrong = b'{"model":"fake","input":"hi","temperature":1,"temperature":7}'
    yield post_bomb("a number twice, the last is wrong", wrong, param="temperature")
