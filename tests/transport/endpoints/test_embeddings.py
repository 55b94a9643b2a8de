"""Tests POST /v1/embeddings on the fake engine: accepted inputs, encoding formats, and rejected fields.

Covers `transport/endpoints/engine_tasks.py`.
"""

import array
import asyncio
import base64
import json
import math
from typing import Any

import pytest
from openai.types import CreateEmbeddingResponse

from antiphon.engines.base import EmbeddingResult
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.tokens import encode_text
from antiphon.limits import Limits
from tests.api.app import Client, run_api
from tests.oracles.responses import check_embeddings
from tests.support.asgi_client import JSON, call

pytestmark = pytest.mark.anyio

DIMENSIONS = 64


async def create_embeddings(body: dict[str, Any], engine: FakeEngine | None = None, **settings: Any) -> Any:
    async with run_api(engine=engine, **settings) as fake:
        return await fake.post_ok("embeddings", {"model": "fake", **body})


async def expect_client_error(body: Any, **settings: Any) -> dict[str, Any]:
    async with run_api(**settings) as fake:
        answer = await fake.post("embeddings", body)
    assert 400 <= answer.status < 500, answer.body
    return {"status": answer.status, **answer.error}


def decode_floats(text: str) -> list[float]:
    return array.array("f", base64.b64decode(text)).tolist()


@pytest.mark.shows("G.4", "C.27")
async def test_a_text_yields_a_unit_vector_in_openai_format() -> None:
    answer = await create_embeddings({"input": "The sea is calm."})
    check_embeddings(answer)
    assert answer["model"] == "fake"
    assert answer["id"].startswith("embd-")
    [vector] = [each["embedding"] for each in answer["data"]]
    assert len(vector) == DIMENSIONS
    assert math.isclose(sum(number * number for number in vector), 1, rel_tol=1e-6)
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


@pytest.mark.shows("G.4")
async def test_texts_keep_their_order_and_similar_texts_have_close_vectors() -> None:
    texts = ["the cat sat on the mat", "a bill was passed", "on the mat the cat sat"]
    answer = await create_embeddings({"input": texts})
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    one, other, again = [each["embedding"] for each in answer["data"]]
    assert sum(a * b for a, b in zip(one, again, strict=True)) > 0.99
    assert sum(a * b for a, b in zip(one, other, strict=True)) < 0.5


@pytest.mark.shows("G.4")
async def test_token_ids_are_accepted_for_one_or_several_inputs() -> None:
    tokens = encode_text("sea")
    text = await create_embeddings({"input": "sea"}, FakeEngine(FakeSettings(level="tokens")))
    one = await create_embeddings({"input": tokens}, FakeEngine(FakeSettings(level="tokens")))
    two = await create_embeddings({"input": [tokens, encode_text("sky")]}, FakeEngine(FakeSettings(level="tokens")))
    assert one["data"] == text["data"] == two["data"][:1]
    assert (one["usage"]["prompt_tokens"], two["usage"]["prompt_tokens"], len(two["data"])) == (3, 6, 2)


@pytest.mark.shows("G.4")
async def test_base64_vectors_equal_float_vectors() -> None:
    floats = await create_embeddings({"input": ["a", "b"], "encoding_format": "float"})
    texts = await create_embeddings({"input": ["a", "b"], "encoding_format": "base64"})
    assert CreateEmbeddingResponse.model_validate(floats)
    for number, text in zip(floats["data"], texts["data"], strict=True):
        assert decode_floats(text["embedding"]) == pytest.approx(number["embedding"], rel=1e-6)


@pytest.mark.shows("G1.6")
async def test_the_bytes_format_returns_raw_vectors_with_offsets_in_a_header() -> None:
    floats = await create_embeddings({"input": ["a", "b"], "dimensions": 8})
    async with run_api() as fake:
        body = {"model": "fake", "input": ["a", "b"], "dimensions": 8, "encoding_format": "bytes"}
        answer = await fake.post("embeddings", body)
        bytes_only = await fake.post("embeddings", {**body, "encoding_format": "bytes_only"})
    assert answer.header(b"content-type") == b"application/octet-stream"
    metadata = json.loads(answer.header(b"metadata") or b"")
    assert metadata["usage"] == floats["usage"]
    assert metadata["id"].startswith("embd-")
    for entry, expected in zip(metadata["data"], floats["data"], strict=True):
        assert (entry["embed_dtype"], entry["endianness"], entry["shape"]) == ("float32", "little", [8])
        read = array.array("f", answer.body[entry["start"] : entry["end"]]).tolist()
        assert read == pytest.approx(expected["embedding"], rel=1e-6)
    assert (bytes_only.body, bytes_only.header(b"metadata")) == (answer.body, None)


async def test_a_model_name_is_escaped_in_the_metadata_header() -> None:
    async with run_api() as fake:
        answer = await fake.post("embeddings", {"model": "é\r\nx", "input": "a", "encoding_format": "bytes"})
    metadata = answer.header(b"metadata") or b""
    assert metadata.isascii()
    assert not {*b"\r\n"} & {*metadata}
    assert json.loads(metadata)["model"] == "é\r\nx"


@pytest.mark.shows("G.4")
async def test_a_shortened_vector_is_normalised() -> None:
    full = (await create_embeddings({"input": "the sea"}))["data"][0]["embedding"]
    shortened = (await create_embeddings({"input": "the sea", "dimensions": 16}))["data"][0]["embedding"]
    assert len(shortened) == 16
    assert math.isclose(sum(number * number for number in shortened), 1, rel_tol=1e-6)
    length = math.sqrt(sum(number * number for number in full[:16]))
    assert shortened == pytest.approx([number / length for number in full[:16]])


async def test_an_overlong_input_is_rejected_unless_truncation_is_requested() -> None:
    engine = FakeEngine(FakeSettings(context=8))
    async with run_api(engine=engine) as fake:
        long = {"model": "fake", "input": "word " * 20}
        answer = await fake.post("embeddings", long)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
        assert (await fake.post_ok("embeddings", {**long, "truncate_prompt_tokens": -1}))["usage"]["prompt_tokens"] == 8
        assert (await fake.post_ok("embeddings", {**long, "truncate_prompt_tokens": 3}))["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": "x"}, "model", "missing_required_parameter"),
        ({"model": "fake"}, "input", "missing_required_parameter"),
        ({"model": "fake", "input": ""}, "input", "invalid_value"),
        ({"model": "fake", "input": []}, "input", "invalid_value"),
        ({"model": "fake", "input": ["a", ""]}, "input[1]", "invalid_value"),
        ({"model": "fake", "input": [[1], []]}, "input[1]", "invalid_value"),
        ({"model": "fake", "input": ["a", 1]}, "input", "invalid_value"),
        ({"model": "fake", "input": [1, [2]]}, "input", "invalid_value"),
        ({"model": "fake", "input": [-1]}, "input[0]", "invalid_value"),
        ({"model": "fake", "input": [1.5]}, "input[0]", "invalid_type"),
        ({"model": "fake", "input": [True]}, "input[0]", "invalid_type"),
        ({"model": "fake", "input": {"text": "a"}}, "input", "invalid_type"),
        ({"model": "fake", "input": "a", "encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"model": "fake", "input": "a", "dimensions": 0}, "dimensions", "invalid_value"),
        ({"model": "fake", "input": "a", "dimensions": 65}, "dimensions", "invalid_value"),
        ({"model": "fake", "input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
        ({"model": "fake", "input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "invalid_value"),
        ({"model": "fake", "input": "a", "embed_dtype": "float16"}, "embed_dtype", "unsupported_parameter"),
        ({"model": "fake", "input": "a", "endianness": "big"}, "endianness", "unsupported_parameter"),
        ({"model": "fake", "input": "a", "truncation_side": "left"}, "truncation_side", "unsupported_parameter"),
        ({"model": "fake", "input": "a", "messages": []}, "messages", "unsupported_parameter"),
        ({"model": "fake", "input": ["a"] * 65, "encoding_format": "bytes"}, "encoding_format", "invalid_value"),
    ],
)
async def test_invalid_input_is_rejected_with_its_field(body: dict[str, Any], param: str, code: str) -> None:
    error = await expect_client_error(body)
    assert (error["status"], error["param"], error["code"]) == (400, param, code)


async def test_too_many_inputs_are_rejected() -> None:
    error = await expect_client_error({"model": "fake", "input": ["a", "b", "c"]}, limits=Limits(embedding_inputs=2))
    assert (error["status"], error["param"]) == (400, "input")
    assert "3 inputs; at most 2" in error["message"]


async def test_unknown_fields_are_listed_and_null_fields_are_ignored() -> None:
    body = {"model": "fake", "input": "a", "dimensions": None, "user": "u", "colour": "red", "padding": "do_not_pad"}
    async with run_api() as fake:
        answer = await fake.post("embeddings", body)
    assert (answer.status, answer.header(b"x-antiphon-ignored")) == (200, b"colour")


class BlockingEngine(FakeEngine):
    """An engine whose embeddings block until `released` is set."""

    def __init__(self) -> None:
        super().__init__(FakeSettings(at_once=1))
        self.started, self.released, self.finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def embed(self, *args: Any, **kwargs: Any) -> EmbeddingResult:
        self.started.set()
        try:
            await self.released.wait()
        finally:
            self.finished.set()
        return await super().embed(*args, **kwargs)


async def test_a_disconnected_client_cancels_the_embedding_and_frees_its_slot() -> None:
    engine = BlockingEngine()
    async with asyncio.timeout(30), run_api(engine=engine) as fake:
        client = Client(fake.app, "POST", "embeddings", model="fake", input="a")
        await engine.started.wait()
        client.disconnect()
        await engine.finished.wait()
        await client.request
        engine.released.set()
        assert (await fake.post("embeddings", {"model": "fake", "input": "a"})).status == 200


async def test_a_full_queue_is_rejected_with_429() -> None:
    engine = BlockingEngine()
    async with asyncio.timeout(30), run_api(engine=engine, queue=0) as fake:
        client = Client(fake.app, "POST", "embeddings", model="fake", input="a")
        await engine.started.wait()
        answer = await fake.post("embeddings", {"model": "fake", "input": "a"})
        assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
        engine.released.set()
        await client.request


@pytest.mark.shows("G2.2", "G2.3")
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/v3/embeddings"])
async def test_embeddings_are_served_on_every_path(path: str) -> None:
    async with run_api() as fake:
        body = json.dumps({"model": "fake", "input": "a"}).encode()
        answer = await call(fake.app, "POST", path, JSON, body=[body])
    assert answer.status == 200
