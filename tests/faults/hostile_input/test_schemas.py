"""Schemas that would kill or choke an engine are refused before it sees them, and the next request is served."""

import json
from typing import Any

import pytest

from drills.bombs.schemas import (
    BAD,
    BAD_GRAMMARS,
    BAD_PATTERNS,
    FINE,
    HARD,
    UNANSWERABLE,
    as_custom_tool,
    as_format,
    as_tool,
)
from tests.faults.raw_client import body, exchange, refused, request
from tests.support.server_process import Live

pytestmark = pytest.mark.anyio


def _as_format(schema: Any) -> bytes:
    return request(body(**as_format(schema)))


def _as_tool(schema: Any) -> bytes:
    return request(body(**as_tool(schema)))


@pytest.mark.parametrize("name", BAD)
@pytest.mark.shows("H6.6")
async def test_a_bad_format_is_refused_by_name(server: Live, name: str) -> None:
    await refused(server.port, _as_format(BAD[name]), 400, param="text.format.schema")
    assert (await exchange(server.port, _as_format(FINE))).status == 200


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_tool_is_refused_by_name(server: Live, name: str) -> None:
    await refused(server.port, _as_tool(BAD[name]), 400, param="tools[0].parameters")
    assert (await exchange(server.port, _as_tool(FINE))).status == 200


@pytest.mark.parametrize("name", HARD)
async def test_a_hard_schema_is_answered_or_refused_in_time(server: Live, name: str) -> None:
    for sent in (_as_format(HARD[name]), _as_tool(HARD[name])):
        answer = await exchange(server.port, sent)
        assert answer.status in (200, 400), answer


@pytest.mark.parametrize("name", UNANSWERABLE)
async def test_a_schema_that_nothing_can_satisfy_is_the_fault_of_the_request(server: Live, name: str) -> None:
    for sent, param in (
        (_as_format(UNANSWERABLE[name]), "text.format.schema"),
        (_as_tool(UNANSWERABLE[name]), "tools"),
    ):
        answer = await exchange(server.port, sent)
        assert answer.status == 400, answer
        assert answer.error()["param"] == param


@pytest.mark.parametrize("pattern", BAD_PATTERNS)
async def test_a_bad_grammar_of_a_custom_tool_is_refused_by_name(server: Live, pattern: str) -> None:
    await refused(server.port, request(body(**as_custom_tool("regex", pattern))), 400, param="tools[0].format")


@pytest.mark.parametrize("grammar", BAD_GRAMMARS, ids=lambda grammar: grammar[:20])
async def test_a_grammar_that_cannot_be_read_is_refused_by_name_and_in_few_words(server: Live, grammar: str) -> None:
    answer = await exchange(server.port, request(body(**as_custom_tool("lark", grammar))))
    assert (answer.status, answer.error()["param"]) == (400, "tools[0].format.definition")
    assert len(answer.body) < 2_000


async def test_many_different_schemas_leave_nothing_behind(server: Live) -> None:
    """What is compiled for a schema must not be kept for ever."""
    for round_ in range(2):
        before = _rss(server)
        for number in range(150):
            answer = await exchange(server.port, _as_format({"type": "string", "const": f"{round_}.{number}" * 200}))
            assert answer.status == 200, answer
    assert _rss(server) - before < 4 * 1024 * 1024


def _rss(live: Live) -> int:
    with open(f"/proc/{live.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


async def test_a_schema_is_echoed_as_it_was_sent(server: Live) -> None:
    answer = await exchange(server.port, _as_format(FINE))
    assert json.loads(answer.body)["text"]["format"]["schema"] == FINE
