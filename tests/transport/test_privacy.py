"""What clients ask and models answer stands in no log line, whatever becomes of it."""

import json
import logging
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.core.deltas import Text
from antiphon.engines.fake import FakeEngine
from antiphon.errors import EngineFailed
from antiphon.wiring import build_app
from tests.asgi import JSON, call

pytestmark = pytest.mark.anyio
ASKED, SAID = "a question of mine", "an answer of yours"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


async def logged(engine: FakeEngine, caplog: pytest.LogCaptureFixture, **body: Any) -> str:
    """All that was logged, at any level, about a request."""
    app = build_app(Config(engine="fake"), engine)
    content = json.dumps({"model": "fake", "input": ASKED, "metadata": {"note": ASKED}, **body}).encode()
    with caplog.at_level(logging.DEBUG):
        answer = await call(app, "POST", "/v1/responses", JSON, body=[content])
    assert answer.status
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
