"""Reading of streamed chat completions: the logprobs of special tokens."""

import json
from typing import Any

from antiphon.core.prompt import Chunk, Sampling
from antiphon.engines.http.readers.chat_reader import ChatCompletionReader
from antiphon.engines.http.readers.wire import FULL_COMPLETION

Json = dict[str, Any]


def _read_stream(*choices: Json) -> list[Chunk]:
    """Read a stream of these choices, one per event."""
    reader = ChatCompletionReader("The engine", Sampling(logprobs=0), None, True)
    events = [FULL_COMPLETION.decode(json.dumps({"choices": [choice]})) for choice in choices]
    return [*reader.feed(events), *reader.end()]


def _make_delta(content: str | None, token: str) -> Json:
    return {"delta": {"content": content}, "logprobs": {"content": [{"token": token, "logprob": -1.0}]}}


def test_an_end_token_in_an_event_of_its_own_is_dropped_from_the_logprobs() -> None:
    """SGLang sends it like this."""
    end = {"delta": {"reasoning_content": None}, "finish_reason": "stop", "matched_stop": 2}
    chunks = _read_stream(_make_delta("Hi", "Hi"), _make_delta(None, "<|im_end|>"), end)
    assert [logprob.token for chunk in chunks for logprob in chunk.logprobs] == ["Hi"]


def test_the_logprobs_of_tokens_without_text_are_sent_with_the_next_chunk() -> None:
    """Such as half a character, or the last token within the limit."""
    end = {"delta": {}, "finish_reason": "length"}
    chunks = _read_stream(_make_delta("", "\ufffd"), _make_delta("é", "\ufffd"), _make_delta("", "x"), end)
    assert [(chunk.text, len(chunk.logprobs)) for chunk in chunks] == [("é", 2), ("", 1), ("", 0)]
