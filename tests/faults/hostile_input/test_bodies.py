"""Request bodies that are too large, too deep, too numerous in values or mislabelled get a 4xx in OpenAI's format,
never a 5xx.
"""

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
    NESTING_PREFIXES,
    NOT_JSON,
    NOT_OBJECTS,
    TOO_MUCH,
    WRONG_VALUES,
    nest_body,
)
from drills.bombs.http import CODINGS, MEDIA_TYPES
from tests.faults.raw_client import build_body, build_request, expect_error, send_request
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", NOT_JSON)
@pytest.mark.shows("H6.4")
async def test_invalid_json_is_rejected(server: ServerProcess, name: str) -> None:
    await expect_error(server.port, build_request(NOT_JSON[name]), 400)


@pytest.mark.parametrize("sent", NOT_OBJECTS)
async def test_a_body_that_is_not_an_object_is_rejected(server: ServerProcess, sent: bytes) -> None:
    await expect_error(server.port, build_request(sent), 400)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("before", NESTING_PREFIXES)
@pytest.mark.shows("H6.4")
async def test_deeply_nested_json_is_rejected_at_every_position(server: ServerProcess, before: str, depth: int) -> None:
    await expect_error(server.port, build_request(nest_body(before, depth)), 400)


@pytest.mark.parametrize("size", [21 * MIB, 50 * MIB])
@pytest.mark.shows("H6.2")
async def test_an_oversized_content_length_is_rejected(server: ServerProcess, size: int) -> None:
    sent = build_request(b"", headers=[("Content-Length", str(size))])
    answer = await send_request(server.port, sent + b'{"input":"')
    assert answer.status == 413, answer
    answer.parse_error()


@pytest.mark.shows("H6.2")
async def test_an_oversized_chunked_body_is_rejected_at_the_limit(server: ServerProcess) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield build_request(b"", headers=[("Content-Length", ""), ("Transfer-Encoding", "chunked")])
        yield b'a\r\n{"input":"\r\n'
        for _ in range(50):
            yield b"100000\r\n" + b"x" * MIB + b"\r\n"

    answer = await send_request(server.port, pieces())
    assert answer.status == 413, answer
    answer.parse_error()


@pytest.mark.parametrize(
    ("fields", "param"), TOO_MUCH, ids=lambda value: value if isinstance(value, str) else next(iter(value))
)
async def test_an_oversized_field_is_rejected_with_its_name(
    server: ServerProcess, fields: dict[str, Any], param: str
) -> None:
    await expect_error(server.port, build_request(build_body(**fields)), 400, param=param)


@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.shows("H6.4")
async def test_a_flood_of_small_values_is_rejected_before_decoding(server: ServerProcess, name: str) -> None:
    await expect_error(server.port, build_request(build_body(**FLOODS[name]())), 400, 413)


@pytest.mark.parametrize(
    ("fields", "param"), WRONG_VALUES, ids=lambda value: value if isinstance(value, str) else json.dumps(value)
)
async def test_a_field_of_the_wrong_type_is_rejected_with_its_name(
    server: ServerProcess, fields: dict[str, Any], param: str
) -> None:
    await expect_error(server.port, build_request(build_body(**fields)), 400, param=param)


async def test_a_template_from_a_client_is_never_rendered(server: ServerProcess) -> None:
    answer = await send_request(server.port, build_request(build_body(chat_template="{{ ''.__class__.__mro__ }}")))
    assert answer.status == 400 or "chat_template" in answer.headers["x-antiphon-ignored"], answer
    assert b"class" not in answer.body or answer.status == 400


async def test_the_last_of_two_equal_keys_is_used(server: ServerProcess) -> None:
    answer = await send_request(server.port, build_request(b'{"model":"a","input":"one","model":"b","input":"two"}'))
    response = json.loads(answer.body)
    assert (response["model"], response["output"][0]["content"][0]["text"]) == ("b", "You said: two")


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.shows("H6.5")
async def test_a_compressed_body_is_rejected(server: ServerProcess, coding: str) -> None:
    bomb = gzip.compress(b" " * MIB + build_body())
    await expect_error(server.port, build_request(bomb, headers=[("Content-Encoding", coding)]), 415)


@pytest.mark.parametrize("media_type", MEDIA_TYPES)
@pytest.mark.shows("H6.5")
async def test_media_types_other_than_json_are_rejected(server: ServerProcess, media_type: str) -> None:
    await expect_error(server.port, build_request(build_body(), headers=[("Content-Type", media_type)]), 415)


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "Application/JSON", 'application/json;charset="utf-8"']
)
async def test_every_spelling_of_the_json_media_type_is_accepted(server: ServerProcess, media_type: str) -> None:
    assert (
        await send_request(server.port, build_request(build_body(), headers=[("Content-Type", media_type)]))
    ).status == 200


async def test_a_body_that_does_not_match_its_content_type_is_rejected(server: ServerProcess) -> None:
    await expect_error(server.port, build_request(gzip.compress(build_body())), 400)


async def test_unknown_fields_are_listed_in_a_header_of_bounded_length(server: ServerProcess) -> None:
    answer = await send_request(server.port, build_request(build_body(**{f"unheard_of_{n}": n for n in range(40_000)})))
    assert answer.status == 200, answer
    assert answer.headers["x-antiphon-ignored"].startswith("unheard_of_0, ")
    assert len(answer.headers["x-antiphon-ignored"]) < 8_000


async def test_an_unknown_field_cannot_inject_a_header(server: ServerProcess) -> None:
    answer = await send_request(server.port, build_request(build_body(**{"a\r\nSet-Cookie: b=c": 1, "naïve": 2})))
    assert answer.status == 200, answer
    assert "set-cookie" not in answer.headers


async def test_a_large_valid_body_is_served(server: ServerProcess) -> None:
    answer = await send_request(server.port, build_request(build_body(input="x" * 90_000, max_output_tokens=4)))
    assert answer.status == 200, answer
    assert json.loads(answer.body)["status"] == "incomplete"


async def test_the_memory_of_large_bodies_is_released_or_reused(server: ServerProcess) -> None:
    """malloc of glibc retains the memory of two copies of the largest body, however many there were."""
    sent = build_request(build_body(input="x" * (15 * MIB), temperature=7))
    await expect_error(server.port, build_request(build_body(temperature=7)), 400)
    before = rss_bytes(server.process.pid)
    for _ in range(6):
        await expect_error(server.port, sent, 400, param="temperature")
    async with asyncio.timeout(60):
        while rss_bytes(server.process.pid) - before > 40 * MIB:  # the last body may not be freed yet
            assert (await send_request(server.port, build_request(b"", method="GET", path="/health"))).status == 200
