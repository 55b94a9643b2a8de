"""Requests of /v1/completions, as they are read."""

import json
from typing import Any

import pytest

from antiphon.core.dialects.completions_request import read_completion
from antiphon.limits import Limits


@pytest.mark.parametrize(("stream", "ignored"), [(False, True), (True, False)])
def test_stream_options_have_an_effect_on_streams_only(stream: bool, ignored: bool) -> None:
    body: dict[str, Any] = {"model": "m", "prompt": "hi", "stream": stream, "stream_options": {"include_usage": True}}
    request = read_completion(json.dumps(body).encode(), Limits())
    assert ("stream_options" in request.decoded.ignored) is ignored
