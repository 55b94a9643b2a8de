"""Bodies that are no JSON, too deep, too many of anything, or of the wrong kind; and names that are there twice."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from drills.bombs.bomb import Bomb, asked, given, posted
from tests.faults.raw_client import body, request

MIB = 1024 * 1024
DEEP = 100_000
DEPTHS = (65, 1_000, 20_000)


def nested(depth: int) -> bytes:
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
    "closed brackets": nested(DEEP),
}
NO_OBJECTS = (b"[]", b"null", b"1", b'"text"', b"true")
PLACES_FOR_DEPTH = (
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
WRONG: tuple[tuple[dict[str, Any], str], ...] = (
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
# What is more than is decoded at all.
FLOODS: dict[str, Callable[[], dict[str, Any]]] = {
    "items": lambda: {"input": [{"role": "user", "content": "x"}] * 100_000},
    "tools": lambda: {"tools": [{"type": "function", "name": f"f{n}"} for n in range(100_000)]},
    "metadata": lambda: {"metadata": {f"k{n}": "v" for n in range(100_000)}},
    "empty lists": lambda: {"input": [[]] * 1_000_000},
}


def filled(opening: str, piece: str, closing: str, size: int) -> bytes:
    times = (size - len(opening) - len(closing)) // len(piece)
    return (opening + piece * times + closing).encode()


def bodies() -> Iterator[Bomb]:
    yield from [posted(f"no JSON: {name}", sent) for name, sent in NOT_JSON.items()]
    yield from [posted(f"no object: {sent.decode()}", sent) for sent in NO_OBJECTS]
    for number, before in enumerate(PLACES_FOR_DEPTH):
        yield from [posted(f"{depth} deep, place {number}", deep(before, depth)) for depth in DEPTHS]
    for fields, param in (*TOO_MUCH, *WRONG):
        yield asked(f"{next(iter(fields))}: {str([*fields.values()])[:50]}", fields, param=param)
    for name, make in FLOODS.items():
        yield Bomb(name=f"a flood of {name}", make=partial(_flood, make), answers=(400, 413))
    yield from _large()
    yield from _twice()


def deep(before: str, depth: int) -> bytes:
    """`before`: JSON up to where it is to stand."""
    closing = "".join({"{": "}", "[": "]"}[each] for each in reversed(before) if each in "{[")
    return before.encode() + nested(depth) + closing.encode()


def _large() -> Iterator[Bomb]:
    for size in (20, 21, 27, 50, 100):
        sent = request(b"", headers=[("Content-Length", str(size * MIB + 1))]) + b'{"input":"'
        yield given(f"{size} MiB announced", sent, answers=(413,))
    yield Bomb(name="27 MiB sent", make=lambda: request(body(input="x" * (27 * MIB))), answers=(413,))
    yield Bomb(name="50 MiB in chunks", make=_chunks, answers=(413,))
    begun = '{"model":"fake","max_output_tokens":1,"temperature":7,"input":"'
    for name, opening, piece, closing in (
        ("one string", begun, "x", '"}'),
        ("escapes", begun, "\\u0041", '"}'),
        ("quotes", begun, '\\"', '"}'),
        ("small items", '{"model":"fake","input":[', '{"role":"user","content":"x"},', "7]}"),
        ("empty strings", '{"model":"fake","input":[', '"",', '""]}'),
        ("brackets", "", "[", ""),
        ("numbers", '{"model":"fake","input":[', "1,", "1]}"),
        ("digits", '{"model":"fake","input":', "1", "}"),
    ):
        for size in (MIB, 5 * MIB, 20 * MIB - 1000):
            yield posted(f"{name}, {size // 1000} kB", partial(filled, opening, piece, closing, size))


def _flood(make: Callable[[], dict[str, Any]]) -> bytes:
    return request(body(**make()))


def _chunks() -> bytes:
    head = request(b"", headers=[("Content-Length", ""), ("Transfer-Encoding", "chunked")])
    return head + b'a\r\n{"input":"\r\n' + (b"100000\r\n" + b"x" * MIB + b"\r\n") * 50


def _twice() -> Iterator[Bomb]:
    """Of two equal names the last wins."""
    same = b'{"model":"a","input":"one","model":"b","input":"two"}'
    yield posted("names twice", same, answers=(200,), says=b"You said: two", reaches=True)
    off = b'{"model":"fake","input":"hi","store":true,"store":false}'
    yield posted("store twice", off, answers=(200,), says=b'"store":false', reaches=True)
    wrong = b'{"model":"fake","input":"hi","temperature":1,"temperature":7}'
    yield posted("a number twice, the last is wrong", wrong, param="temperature")
