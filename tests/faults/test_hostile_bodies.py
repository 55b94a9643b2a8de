"""Bodies that are too large, too deep, too many or not what they say: a 4xx in OpenAI's shape, never a 5xx."""

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.faults.wire import body, exchange, refused, request
from tests.live import Live

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
DEEP = 100_000


def _nested(depth: int) -> bytes:
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
    "closed brackets": _nested(DEEP),
}


@pytest.mark.parametrize("name", NOT_JSON)
@pytest.mark.shows("H6.4")
async def test_what_is_not_json_is_refused(server: Live, name: str) -> None:
    await refused(server.port, request(NOT_JSON[name]), 400)


@pytest.mark.parametrize("sent", [b"[]", b"null", b"1", b'"text"', b"true"])
async def test_a_body_that_is_no_object_is_refused(server: Live, sent: bytes) -> None:
    await refused(server.port, request(sent), 400)


@pytest.mark.parametrize("depth", [65, 1_000, 20_000])
@pytest.mark.parametrize(
    "before",
    [
        '{"model":"fake","input":',
        '{"model":"fake","input":"hi","metadata":{"k":',
        '{"model":"fake","input":"hi","unheard_of":{"k":',
        '{"model":"fake","input":"hi","tools":[{"type":"function","name":"f","parameters":{"k":',
        '{"model":"fake","input":[{"type":"message","role":"user","content":',
    ],
)
@pytest.mark.shows("H6.4")
async def test_deep_json_is_refused_wherever_it_is(server: Live, before: str, depth: int) -> None:
    closing = "".join({"{": "}", "[": "]"}[each] for each in reversed(before) if each in "{[")
    await refused(server.port, request(before.encode() + _nested(depth) + closing.encode()), 400)


@pytest.mark.parametrize("size", [21 * MIB, 50 * MIB])
@pytest.mark.shows("H6.2")
async def test_a_body_beyond_the_limit_is_refused_by_its_announced_length(server: Live, size: int) -> None:
    sent = request(b"", headers=[("Content-Length", str(size))])
    answer = await exchange(server.port, sent + b'{"input":"')
    assert answer.status == 413, answer
    answer.error()


@pytest.mark.shows("H6.2")
async def test_fifty_megabytes_in_chunks_are_refused_at_the_limit(server: Live) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield request(b"", headers=[("Content-Length", ""), ("Transfer-Encoding", "chunked")])
        yield b'a\r\n{"input":"\r\n'
        for _ in range(50):
            yield b"100000\r\n" + b"x" * MIB + b"\r\n"

    answer = await exchange(server.port, pieces())
    assert answer.status == 413, answer
    answer.error()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
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
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
async def test_too_much_of_anything_is_refused_by_name(server: Live, fields: dict[str, Any], param: str) -> None:
    await refused(server.port, request(body(**fields)), 400, param=param)


@pytest.mark.parametrize(
    "fields",
    [
        {"input": [{"role": "user", "content": "x"}] * 100_000},
        {"tools": [{"type": "function", "name": f"f{n}"} for n in range(100_000)]},
        {"metadata": {f"k{n}": "v" for n in range(100_000)}},
        {"input": [[]] * 1_000_000},
    ],
    ids=["items", "tools", "metadata", "empty lists"],
)
@pytest.mark.shows("H6.4")
async def test_a_flood_of_small_things_is_refused_before_it_is_decoded(server: Live, fields: dict[str, Any]) -> None:
    await refused(server.port, request(body(**fields)), 400, 413)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
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
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value),
)
async def test_a_field_of_the_wrong_kind_is_refused_by_name(server: Live, fields: dict[str, Any], param: str) -> None:
    await refused(server.port, request(body(**fields)), 400, param=param)


async def test_a_template_from_a_client_is_never_rendered(server: Live) -> None:
    answer = await exchange(server.port, request(body(chat_template="{{ ''.__class__.__mro__ }}")))
    assert answer.status == 400 or "chat_template" in answer.headers["x-antiphon-ignored"], answer
    assert b"class" not in answer.body or answer.status == 400


async def test_of_two_equal_keys_the_last_wins(server: Live) -> None:
    answer = await exchange(server.port, request(b'{"model":"a","input":"one","model":"b","input":"two"}'))
    told = json.loads(answer.body)
    assert (told["model"], told["output"][0]["content"][0]["text"]) == ("b", "You said: two")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "x-gzip"])
@pytest.mark.shows("H6.5")
async def test_a_compressed_body_is_refused(server: Live, coding: str) -> None:
    bomb = gzip.compress(b" " * MIB + body())
    await refused(server.port, request(bomb, headers=[("Content-Encoding", coding)]), 415)


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml", ""],
)
@pytest.mark.shows("H6.5")
async def test_only_json_is_taken(server: Live, kind: str) -> None:
    await refused(server.port, request(body(), headers=[("Content-Type", kind)]), 415)


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "Application/JSON", 'application/json;charset="utf-8"']
)
async def test_json_is_taken_however_it_is_spelled(server: Live, kind: str) -> None:
    assert (await exchange(server.port, request(body(), headers=[("Content-Type", kind)]))).status == 200


async def test_a_lying_content_type_does_not_matter_for_long(server: Live) -> None:
    await refused(server.port, request(gzip.compress(body())), 400)


async def test_unheard_of_fields_are_named_in_a_header_of_bounded_length(server: Live) -> None:
    answer = await exchange(server.port, request(body(**{f"unheard_of_{n}": n for n in range(40_000)})))
    assert answer.status == 200, answer
    assert answer.headers["x-antiphon-ignored"].startswith("unheard_of_0, ")
    assert len(answer.headers["x-antiphon-ignored"]) < 8_000


async def test_an_unheard_of_field_cannot_break_out_of_its_header(server: Live) -> None:
    answer = await exchange(server.port, request(body(**{"a\r\nSet-Cookie: b=c": 1, "naïve": 2})))
    assert answer.status == 200, answer
    assert "set-cookie" not in answer.headers


async def test_a_large_honest_body_is_served(server: Live) -> None:
    answer = await exchange(server.port, request(body(input="x" * 90_000, max_output_tokens=4)))
    assert answer.status == 200, answer
    assert json.loads(answer.body)["status"] == "incomplete"
