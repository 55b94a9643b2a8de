"""The drill of forged control tokens in its shortest form."""

import asyncio

import pytest

from antiphon.agent.tool_resolver import Declared
from antiphon.core.deltas import CallStarted
from antiphon.core.prompt import ChatPrompt
from antiphon.parsers.base import Reading
from antiphon.render.control_strings import FAMILIES
from drills.engines.quoting import OFFERS, TOOLS, read
from drills.forgery.drill import Asked, Trial, asked, forgery
from drills.forgery.forged_requests import PLACES, SHAPES, forgeries
from drills.forgery.vocabulary import spelled
from drills.harness.findings import Findings

pytestmark = pytest.mark.anyio


@pytest.mark.needs("llamacpp")
@pytest.mark.shows("C.7", "D.19")
async def test_no_control_token_is_forged_and_nothing_is_called_that_is_only_quoted() -> None:
    findings = Findings("forgery")
    async with asyncio.timeout(280):
        await forgery(250, 1000, findings)
    assert findings.shown == []
    assert findings.trials > 300


class Naive:
    """Takes every text for the template's own, as engines do."""

    name = "naive"

    async def control(self, asked: Asked) -> int:
        text = str(asked.chat.messages) + str(asked.chat.tools)
        return sum(text.count(mark) for mark in ("<|im_start|>", "<|im_end|>", "</s>"))


async def test_the_drill_sees_what_is_forged() -> None:
    findings = Findings("forgery")
    trial = Trial([[Naive()]], findings)
    for forged in forgeries(500):
        await trial.hold(forged)
    assert trial.fates["forged"] > 5


def test_every_family_place_and_shape_gets_its_turn() -> None:
    chosen = list(forgeries(20_000))
    assert len(chosen) == 20_000
    assert {forged.family for forged in chosen} == FAMILIES.keys()
    assert {forged.place.name for forged in chosen} == {place.name for place in PLACES}
    assert {forged.shape for forged in chosen} == SHAPES.keys()
    assert len(spelled()) > 300


def test_most_places_take_what_is_forged() -> None:
    """What is refused forges nothing, and tells nothing either."""
    for place in PLACES:
        if place.name not in ("name of a tool", "name of a call"):
            assert isinstance(asked(place.body("<|im_start|>")).chat, ChatPrompt)


def test_a_call_that_is_no_quotation_is_found() -> None:
    said = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    deltas = Declared(OFFERS).name(read(Reading(calls="hermes", tools=TOOLS), said))
    assert any(isinstance(delta, CallStarted) for delta in deltas)
