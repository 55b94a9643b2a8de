"""`truncation: auto` on engines that do not report the size of their context, or cannot count the tokens of a chat."""

import json
import tracemalloc
from base64 import b64encode
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.prompt import ChatPrompt
from antiphon.service.prompting.prepared_request import estimate_tokens, measure_bytes
from antiphon.transport.middleware.app import App
from tests.engines.http.stubs.chat_stub import EngineStub, run_stub
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.generation import open_app, open_engine, post_response
from tests.support.asgi_client import JSON, AsgiResponse, call
from tests.support.local_servers import serve_tcp
from tests.support.media_files import png, png_chunk

pytestmark = pytest.mark.anyio

UNCOUNTED = ["ovms", "ollama", "openai"]
PNG = b64encode(png(8, 6, png_chunk(b"tEXt", b"x" * 60_000))).decode()
IMAGE = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "low"}


def make_turns(count: int, text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{number} {text}"} for number in range(count)]


def list_sent_turns(stub: EngineStub) -> list[str]:
    """Return the numbers of the turns in the last prompt."""
    return [message["content"].partition(" ")[0] for message in stub.chat_bodies[-1]["messages"]]


async def post_chat(app: App, **body: Any) -> AsgiResponse:
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
    return await call(app, "POST", "/v1/chat/completions", JSON, body=[json.dumps(fields).encode()])


@pytest.mark.parametrize("name", UNCOUNTED)
@pytest.mark.shows("A.19", "A.28")
async def test_truncation_is_rejected_if_the_context_size_is_unknown(name: str) -> None:
    async with run_stub(name) as stub, open_app(stub.url) as app:
        for refused in (await post_response(app, truncation="auto"), await post_chat(app, truncation="auto")):
            assert (refused.status, refused.error["param"]) == (400, "truncation")
            assert "--context" in refused.error["message"]
        assert not stub.chat_bodies
        assert (await post_response(app, truncation="disabled")).status == 200


async def test_a_compaction_needs_no_known_context_size() -> None:
    async with run_stub("openai") as stub, open_app(stub.url) as app:
        body = {"model": "m", "input": make_turns(3, "word " * 50), "truncation": "auto"}
        compacted = await call(app, "POST", "/v1/responses/compact", JSON, body=[json.dumps(body).encode()])
        assert compacted.status == 200, compacted.body
        management = [{"type": "compaction", "compact_threshold": 1000}]
        long = [*make_turns(1, "?"), {"role": "assistant", "content": "so it is " * 900}, *make_turns(1, "!")]
        response = await post_response(app, input=long, context_management=management)
        assert response.json()["output"][0]["type"] == "compaction"


@pytest.mark.parametrize("name", UNCOUNTED)
@pytest.mark.shows("A.28")
async def test_a_configured_context_size_makes_truncation_work(name: str) -> None:
    async with run_stub(name) as stub, open_app(stub.url, context=400) as app:
        response = await post_response(app, input=make_turns(12, "word " * 40), truncation="auto")
        assert response.json()["status"] == "completed"
        sent = list_sent_turns(stub)
        assert 1 <= len(sent) < 12
        assert sent == [str(number) for number in range(12)][-len(sent) :]
        assert (await post_response(app, input="short", truncation="auto")).status == 200


@pytest.mark.shows("A.28")
async def test_an_estimate_has_a_margin_of_a_third() -> None:
    """Two turns have 2 · (305 / 4 + 4) tokens by the plain estimate and 214 with the margin, of a context of 200."""
    turns = make_turns(2, "x" * 290)
    async with run_stub("openai") as stub, open_app(stub.url, context=200) as app:
        await post_response(app, input=turns, truncation="auto")
        assert list_sent_turns(stub) == ["1"]
    async with run_stub("openai") as stub, open_app(stub.url, context=240) as app:
        await post_response(app, input=turns, truncation="auto")
        assert list_sent_turns(stub) == ["0", "1"]


async def test_the_engines_tokenizer_is_used_instead_of_an_estimate() -> None:
    """A character is a token of this tokenizer: six turns have 6 · (100 + 4) tokens, and 233 by the estimate."""
    turns = make_turns(6, "x" * 90)
    for name, sent in (("ovms", ["3", "4", "5"]), ("openai", ["0", "1", "2", "3", "4", "5"])):
        async with run_stub(name) as stub, open_app(stub.url, context=450) as app:
            await post_response(app, input=turns, truncation="auto")
            assert list_sent_turns(stub) == sent, name


async def test_a_missing_tokenizer_is_replaced_by_the_estimate() -> None:
    stub = EngineStub(replace(DIALECTS["ovms"], tokenizing=""))
    async with serve_tcp(stub.serve) as port, open_app(f"ovms://127.0.0.1:{port}", context=450) as app:
        await post_response(app, input=make_turns(12, "x" * 90), truncation="auto")
        assert 6 <= len(list_sent_turns(stub)) < 12


async def test_a_prompt_that_may_be_too_long_by_an_estimate_is_left_to_the_engine() -> None:
    async with run_stub("openai") as stub, open_app(stub.url, context=100) as app:
        response = await post_response(app, input=make_turns(2, "word " * 100), truncation="auto")
        assert response.json()["status"] == "completed"
        assert list_sent_turns(stub) == ["1"]
        assert "max_completion_tokens" not in stub.chat_bodies[-1], "an estimate does not limit the answer"


async def test_the_size_of_an_image_does_not_count() -> None:
    image = {"role": "user", "content": [{"type": "input_text", "text": "0 see"}, IMAGE]}
    async with run_stub("openai") as stub, open_app(stub.url, context=4000) as app:
        assert (await post_response(app, input=[image, *make_turns(1, "?")], truncation="auto")).status == 200
        assert len(stub.chat_bodies[-1]["messages"]) == 2


@pytest.mark.shows("A.27")
async def test_a_configured_context_size_lowers_the_reported_one() -> None:
    async with run_stub("vllm") as stub, open_app(stub.url, context=100) as app:
        refused = await post_response(app, input="word " * 200)
        assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
    async with run_stub("vllm") as stub, open_engine(stub.url, context=100_000) as engine:
        assert (await engine.capabilities("m")).context == 32_768


@pytest.mark.shows("E1.2")
def test_images_are_counted_without_a_copy_of_their_data() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 8_000_000, "detail": "auto"}}
    content = [{"type": "text", "text": "What is this?"}, image]
    plain, seeing = (ChatPrompt(messages=({"role": "user", "content": parts},)) for parts in (content[:1], content))
    tracemalloc.start()
    try:
        assert measure_bytes(seeing) > 8_000_000
        assert 1000 < estimate_tokens(seeing) - estimate_tokens(plain) < 1100
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
