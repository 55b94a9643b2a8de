"""Bodies that are too large, too deep, too many or not what they say: a 4xx in OpenAI's shape, never a 5xx."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bench.harness.process_meter import rss_bytes
from drills.bombs.bodies import (
    DEPTHS,
    FLOODS,
    MIB,
    NO_OBJECTS,
    NOT_JSON,
    PLACES_FOR_DEPTH,
    TOO_MUCH,
    WRONG,
    deep,
)
from drills.bombs.http import CODINGS, MEDIA_TYPES
from tests.faults.raw_client import body, exchange, refused, request
from tests.support.server_process import Live

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", NOT_JSON)
@pytest.mark.shows("H6.4")
async def test_what_is_not_json_is_refused(server: Live, name: str) -> None:
    await refused(server.port, request(NOT_JSON[name]), 400)


@pytest.mark.parametrize("sent", NO_OBJECTS)
async def test_a_body_that_is_no_object_is_refused(server: Live, sent: bytes) -> None:
    await refused(server.port, request(sent), 400)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("before", PLACES_FOR_DEPTH)
@pytest.mark.shows("H6.4")
async def test_deep_json_is_refused_wherever_it_is(server: Live, before: str, depth: int) -> None:
    await refused(server.port, request(deep(before, depth)), 400)


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
    ("fields", "param"), TOO_MUCH, ids=lambda value: value if isinstance(value, str) else next(iter(value))
)
async def test_too_much_of_anything_is_refused_by_name(server: Live, fields: dict[str, Any], param: str) -> None:
    await refused(server.port, request(body(**fields)), 400, param=param)


@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.shows("H6.4")
async def test_a_flood_of_small_things_is_refused_before_it_is_decoded(server: Live, name: str) -> None:
    await refused(server.port, request(body(**FLOODS[name]())), 400, 413)


@pytest.mark.parametrize(
    ("fields", "param"), WRONG, ids=lambda value: value if isinstance(value, str) else json.dumps(value)
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


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.shows("H6.5")
async def test_a_compressed_body_is_refused(server: Live, coding: str) -> None:
    bomb = gzip.compress(b" " * MIB + body())
    await refused(server.port, request(bomb, headers=[("Content-Encoding", coding)]), 415)


@pytest.mark.parametrize("kind", MEDIA_TYPES)
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


async def test_a_large_body_is_given_back_to_the_system(server: Live) -> None:
    sent = request(body(input="x" * (15 * MIB), temperature=7))
    await refused(server.port, request(body(temperature=7)), 400)
    before = rss_bytes(server.process.pid)
    for _ in range(3):
        await refused(server.port, sent, 400, param="temperature")
    async with asyncio.timeout(60):
        while rss_bytes(server.process.pid) - before > 10 * MIB:  # the last one may be about to go
            assert (await exchange(server.port, request(b"", method="GET", path="/health"))).status == 200
