"""A short run of the drill of forged control tokens."""

import asyncio

import pytest

from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.core.deltas import CallStarted
from antiphon.core.prompt import ChatPrompt
from antiphon.parsers.base import ParserOptions
from antiphon.render.control_token_escape import CONTROL_STRINGS_BY_FAMILY
from drills.engines.quoting import OFFERS, TOOLS, parse_output
from drills.forgery.drill import ForgeryTrial, RenderedRequest, forgery, render_request
from drills.forgery.forged_requests import SHAPES, TEXT_FIELDS, make_forgeries
from drills.forgery.vocabulary import list_control_strings
from drills.harness.findings import Findings

pytestmark = pytest.mark.anyio


@pytest.mark.needs("llamacpp")
@pytest.mark.shows("C.7", "D.19")
async def test_no_control_token_is_forged_and_no_quoted_call_is_executed() -> None:
    findings = Findings("forgery")
    async with asyncio.timeout(280):
        await forgery(250, 1000, findings)
    assert findings.reported == []
    assert findings.trials > 300


class NaiveRenderer:
    """Treats every text as part of the template, as engines do."""

    name = "naive"

    async def control(self, request: RenderedRequest) -> int:
        text = str(request.chat.messages) + str(request.chat.tools)
        return sum(text.count(marker) for marker in ("<|im_start|>", "<|im_end|>", "</s>"))


async def test_the_drill_detects_forged_tokens() -> None:
    findings = Findings("forgery")
    trial = ForgeryTrial([[NaiveRenderer()]], findings)
    for forged in make_forgeries(500):
        await trial.check(forged)
    assert trial.outcomes["forged"] > 5


def test_every_family_position_and_shape_is_used() -> None:
    chosen = list(make_forgeries(20_000))
    assert len(chosen) == 20_000
    assert {forged.family for forged in chosen} == CONTROL_STRINGS_BY_FAMILY.keys()
    assert {forged.field.name for forged in chosen} == {position.name for position in TEXT_FIELDS}
    assert {forged.shape for forged in chosen} == SHAPES.keys()
    assert len(list_control_strings()) > 300


def test_most_positions_accept_forged_text() -> None:
    """A rejected request forges nothing, but it proves nothing either."""
    for position in TEXT_FIELDS:
        if position.name not in ("name of a tool", "name of a call"):
            assert isinstance(render_request(position.body("<|im_start|>")).chat, ChatPrompt)


def test_an_unquoted_call_is_found() -> None:
    output = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    deltas = ToolCallResolver(OFFERS).resolve(parse_output(ParserOptions(calls="hermes", tools=TOOLS), output))
    assert any(isinstance(delta, CallStarted) for delta in deltas)
