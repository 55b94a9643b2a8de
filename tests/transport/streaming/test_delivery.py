"""Delivery: how a source is driven, where its failures go, and that it is released."""

import pytest

from antiphon.errors import Unavailable
from antiphon.transport.streaming.delivery import Delivery
from tests.transport.streaming.streams import RecordingStream, ScriptedSource

pytestmark = pytest.mark.anyio
ERROR = Unavailable("Not ready.")


async def test_all_events_are_emitted_and_the_source_is_released() -> None:
    source, stream = ScriptedSource("a", "b"), RecordingStream(is_open=False)
    await Delivery(0.0).stream(source, stream)
    assert stream.events == ["a", "b"]
    assert stream.ended
    assert source.closed == 1


async def test_a_failure_before_the_first_event_is_raised_and_opens_no_stream() -> None:
    source, stream = ScriptedSource(error=ERROR), RecordingStream(is_open=False)
    with pytest.raises(Unavailable):
        await Delivery(0.0).stream(source, stream)
    assert not stream.is_open
    assert source.closed == 1


async def test_a_failure_before_the_first_event_is_emitted_in_a_stream_that_is_open() -> None:
    source, stream = ScriptedSource(error=ERROR), RecordingStream()
    await Delivery(0.0).stream(source, stream)
    assert stream.events == [ERROR]
    assert stream.ended
    assert source.closed == 1
