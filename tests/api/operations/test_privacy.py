"""What clients ask and models answer stands in no log line, whatever becomes of it."""

import logging
from typing import Any

import pytest

from antiphon.core.deltas import Text
from antiphon.engines.fake import FakeEngine
from antiphon.errors import EngineFailed
from tests.api.app import api

pytestmark = pytest.mark.anyio
ASKED, SAID = "a question of mine", "an answer of yours"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


async def logged(engine: FakeEngine, caplog: pytest.LogCaptureFixture, **body: Any) -> str:
    """All that was logged, at any level, about a request."""
    asked = {"model": "fake", "input": ASKED, "metadata": {"note": ASKED}, **body}
    with caplog.at_level(logging.DEBUG):
        async with api(engine=engine) as server:
            assert (await server.post("responses", asked)).status
    return caplog.text


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.shows("H4.2")
async def test_a_good_request_and_its_answer_are_not_logged(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    engine.says(Text(SAID))
    text = await logged(engine, caplog, stream=stream)
    assert ASKED not in text
    assert SAID not in text


@pytest.mark.parametrize("error", [EngineFailed("It died."), ZeroDivisionError("A defect.")], ids=["engine", "defect"])
@pytest.mark.shows("H4.2")
async def test_nor_are_they_when_the_engine_fails(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    engine.says(Text(SAID), Text(SAID))
    engine.fails(error, after=1)
    text = await logged(engine, caplog, stream=True)
    assert ("A defect." in text) is isinstance(error, ZeroDivisionError)
    assert ASKED not in text
    assert SAID not in text


@pytest.mark.shows("H4.2")
async def test_nor_is_a_request_that_is_refused(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    assert ASKED not in await logged(engine, caplog, truncation=ASKED)
