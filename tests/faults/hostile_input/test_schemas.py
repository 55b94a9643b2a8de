"""Schemas that would crash or overload an engine are rejected before they reach it, and the next request is served."""

import json
from typing import Any

import pytest

from drills.bombs.schemas import (
    BAD_GRAMMARS,
    BAD_PATTERNS,
    BAD_SCHEMAS,
    HARD_SCHEMAS,
    UNANSWERABLE_SCHEMAS,
    VALID_SCHEMA,
    as_custom_tool,
    as_format,
    as_tool,
)
from tests.faults.raw_client import build_body, build_request, expect_error, send_request
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.anyio


def _build_format_request(schema: Any) -> bytes:
    return build_request(build_body(**as_format(schema)))


def _build_tool_request(schema: Any) -> bytes:
    return build_request(build_body(**as_tool(schema)))


@pytest.mark.parametrize("name", BAD_SCHEMAS)
@pytest.mark.shows("H6.6")
async def test_an_invalid_format_schema_is_rejected_with_its_param(server: ServerProcess, name: str) -> None:
    await expect_error(server.port, _build_format_request(BAD_SCHEMAS[name]), 400, param="text.format.schema")
    assert (await send_request(server.port, _build_format_request(VALID_SCHEMA))).status == 200


@pytest.mark.parametrize("name", BAD_SCHEMAS)
async def test_an_invalid_tool_schema_is_rejected_with_its_param(server: ServerProcess, name: str) -> None:
    await expect_error(server.port, _build_tool_request(BAD_SCHEMAS[name]), 400, param="tools[0].parameters")
    assert (await send_request(server.port, _build_tool_request(VALID_SCHEMA))).status == 200


@pytest.mark.parametrize("name", HARD_SCHEMAS)
async def test_an_expensive_schema_is_answered_or_rejected_in_time(server: ServerProcess, name: str) -> None:
    for sent in (_build_format_request(HARD_SCHEMAS[name]), _build_tool_request(HARD_SCHEMAS[name])):
        answer = await send_request(server.port, sent)
        assert answer.status in (200, 400), answer


@pytest.mark.parametrize("name", UNANSWERABLE_SCHEMAS)
async def test_an_unsatisfiable_schema_is_a_request_error(server: ServerProcess, name: str) -> None:
    for sent, param in (
        (_build_format_request(UNANSWERABLE_SCHEMAS[name]), "text.format.schema"),
        (_build_tool_request(UNANSWERABLE_SCHEMAS[name]), "tools"),
    ):
        answer = await send_request(server.port, sent)
        assert answer.status == 400, answer
        assert answer.parse_error()["param"] == param


@pytest.mark.parametrize("pattern", BAD_PATTERNS)
async def test_an_invalid_regex_of_a_custom_tool_is_rejected_with_its_param(
    server: ServerProcess, pattern: str
) -> None:
    await expect_error(
        server.port, build_request(build_body(**as_custom_tool("regex", pattern))), 400, param="tools[0].format"
    )


@pytest.mark.parametrize("grammar", BAD_GRAMMARS, ids=lambda grammar: grammar[:20])
async def test_an_invalid_lark_grammar_is_rejected_with_a_short_error(server: ServerProcess, grammar: str) -> None:
    answer = await send_request(server.port, build_request(build_body(**as_custom_tool("lark", grammar))))
    assert (answer.status, answer.parse_error()["param"]) == (400, "tools[0].format.definition")
    assert len(answer.body) < 2_000


async def test_compiled_schemas_do_not_accumulate(server: ServerProcess) -> None:
    """Compiled schemas must not be retained for ever."""
    for round_ in range(2):
        before = _rss_bytes(server)
        for number in range(150):
            answer = await send_request(
                server.port, _build_format_request({"type": "string", "const": f"{round_}.{number}" * 200})
            )
            assert answer.status == 200, answer
    assert _rss_bytes(server) - before < 4 * 1024 * 1024


def _rss_bytes(live: ServerProcess) -> int:
    with open(f"/proc/{live.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


async def test_a_schema_is_echoed_as_it_was_sent(server: ServerProcess) -> None:
    answer = await send_request(server.port, _build_format_request(VALID_SCHEMA))
    assert json.loads(answer.body)["text"]["format"]["schema"] == VALID_SCHEMA
