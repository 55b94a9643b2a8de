"""POST /v1/embeddings: what it takes, what it gives, and what it refuses by name."""

import array
import asyncio
import base64
import json
import math
from typing import Any

import pytest
from openai.types import CreateEmbeddingResponse

from antiphon.engines.base import Embedded
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.tokens import ids_of
from antiphon.limits import Limits
from tests.api.app import Client, api
from tests.oracles.responses import check_embeddings
from tests.support.asgi_client import JSON, call

pytestmark = pytest.mark.anyio

WIDE = 64


async def made(body: dict[str, Any], engine: FakeEngine | None = None, **settings: Any) -> Any:
    async with api(engine=engine, **settings) as fake:
        return await fake.made("embeddings", {"model": "fake", **body})


async def refused(body: Any, **settings: Any) -> dict[str, Any]:
    async with api(**settings) as fake:
        answer = await fake.post("embeddings", body)
    assert 400 <= answer.status < 500, answer.body
    return {"status": answer.status, **answer.error}


def numbers(text: str) -> list[float]:
    return array.array("f", base64.b64decode(text)).tolist()


@pytest.mark.shows("G.4", "C.27")
async def test_a_text_gets_a_vector_of_length_one_in_openais_shape() -> None:
    answer = await made({"input": "The sea is calm."})
    check_embeddings(answer)
    assert answer["model"] == "fake"
    assert answer["id"].startswith("embd-")
    [vector] = [each["embedding"] for each in answer["data"]]
    assert len(vector) == WIDE
    assert math.isclose(sum(number * number for number in vector), 1, rel_tol=1e-6)
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


@pytest.mark.shows("G.4")
async def test_texts_keep_their_order_and_like_ones_are_near() -> None:
    texts = ["the cat sat on the mat", "a bill was passed", "on the mat the cat sat"]
    answer = await made({"input": texts})
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    one, other, again = [each["embedding"] for each in answer["data"]]
    assert sum(left * right for left, right in zip(one, again, strict=True)) > 0.99
    assert sum(left * right for left, right in zip(one, other, strict=True)) < 0.5


@pytest.mark.shows("G.4")
async def test_numbers_of_tokens_are_taken_for_one_input_and_for_several() -> None:
    tokens = ids_of("sea")
    text = await made({"input": "sea"}, FakeEngine(FakeSettings(level="tokens")))
    one = await made({"input": tokens}, FakeEngine(FakeSettings(level="tokens")))
    two = await made({"input": [tokens, ids_of("sky")]}, FakeEngine(FakeSettings(level="tokens")))
    assert one["data"] == text["data"] == two["data"][:1]
    assert (one["usage"]["prompt_tokens"], two["usage"]["prompt_tokens"], len(two["data"])) == (3, 6, 2)


@pytest.mark.shows("G.4")
async def test_base64_says_the_same_as_numbers() -> None:
    floats = await made({"input": ["a", "b"], "encoding_format": "float"})
    texts = await made({"input": ["a", "b"], "encoding_format": "base64"})
    assert CreateEmbeddingResponse.model_validate(floats)
    for number, text in zip(floats["data"], texts["data"], strict=True):
        assert numbers(text["embedding"]) == pytest.approx(number["embedding"], rel=1e-6)


@pytest.mark.shows("G1.6")
async def test_bytes_come_bare_and_a_header_tells_where_each_vector_is() -> None:
    floats = await made({"input": ["a", "b"], "dimensions": 8})
    async with api() as fake:
        asked = {"model": "fake", "input": ["a", "b"], "dimensions": 8, "encoding_format": "bytes"}
        answer = await fake.post("embeddings", asked)
        bare = await fake.post("embeddings", {**asked, "encoding_format": "bytes_only"})
    assert answer.header(b"content-type") == b"application/octet-stream"
    told = json.loads(answer.header(b"metadata") or b"")
    assert told["usage"] == floats["usage"]
    assert told["id"].startswith("embd-")
    for place, listed in zip(told["data"], floats["data"], strict=True):
        assert (place["embed_dtype"], place["endianness"], place["shape"]) == ("float32", "little", [8])
        read = array.array("f", answer.body[place["start"] : place["end"]]).tolist()
        assert read == pytest.approx(listed["embedding"], rel=1e-6)
    assert (bare.body, bare.header(b"metadata")) == (answer.body, None)


async def test_a_name_that_fits_into_no_header_is_escaped_there() -> None:
    async with api() as fake:
        answer = await fake.post("embeddings", {"model": "é\r\nx", "input": "a", "encoding_format": "bytes"})
    told = answer.header(b"metadata") or b""
    assert told.isascii()
    assert not {*b"\r\n"} & {*told}
    assert json.loads(told)["model"] == "é\r\nx"


@pytest.mark.shows("G.4")
async def test_fewer_dimensions_are_a_vector_of_length_one_too() -> None:
    whole = (await made({"input": "the sea"}))["data"][0]["embedding"]
    cut = (await made({"input": "the sea", "dimensions": 16}))["data"][0]["embedding"]
    assert len(cut) == 16
    assert math.isclose(sum(number * number for number in cut), 1, rel_tol=1e-6)
    length = math.sqrt(sum(number * number for number in whole[:16]))
    assert cut == pytest.approx([number / length for number in whole[:16]])


async def test_what_is_too_long_is_refused_unless_it_may_be_cut() -> None:
    engine = FakeEngine(FakeSettings(context=8))
    async with api(engine=engine) as fake:
        long = {"model": "fake", "input": "word " * 20}
        answer = await fake.post("embeddings", long)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
        assert (await fake.made("embeddings", {**long, "truncate_prompt_tokens": -1}))["usage"]["prompt_tokens"] == 8
        assert (await fake.made("embeddings", {**long, "truncate_prompt_tokens": 3}))["usage"]["prompt_tokens"] == 3


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
async def test_bad_input_names_its_field(body: dict[str, Any], param: str, code: str) -> None:
    error = await refused(body)
    assert (error["status"], error["param"], error["code"]) == (400, param, code)


async def test_too_many_inputs_are_refused_before_any_is_looked_at() -> None:
    error = await refused({"model": "fake", "input": ["a", "b", "c"]}, limits=Limits(embedding_inputs=2))
    assert (error["status"], error["param"]) == (400, "input")
    assert "3 inputs; at most 2" in error["message"]


async def test_fields_that_nobody_knows_are_told_and_nulls_are_nothing() -> None:
    body = {"model": "fake", "input": "a", "dimensions": None, "user": "u", "colour": "red", "padding": "do_not_pad"}
    async with api() as fake:
        answer = await fake.post("embeddings", body)
    assert (answer.status, answer.header(b"x-antiphon-ignored")) == (200, b"colour")


class Waiting(FakeEngine):
    """An engine that embeds only when it is let."""

    def __init__(self) -> None:
        super().__init__(FakeSettings(at_once=1))
        self.begun, self.let, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def embed(self, *asked: Any, **named: Any) -> Embedded:
        self.begun.set()
        try:
            await self.let.wait()
        finally:
            self.left.set()
        return await super().embed(*asked, **named)


async def test_a_client_that_leaves_cancels_the_work_and_frees_its_place() -> None:
    engine = Waiting()
    async with asyncio.timeout(30), api(engine=engine) as fake:
        client = Client(fake.app, "POST", "embeddings", model="fake", input="a")
        await engine.begun.wait()
        client.leaves()
        await engine.left.wait()
        await client.request
        engine.let.set()
        assert (await fake.post("embeddings", {"model": "fake", "input": "a"})).status == 200


async def test_a_full_queue_is_a_429() -> None:
    engine = Waiting()
    async with asyncio.timeout(30), api(engine=engine, queue=0) as fake:
        client = Client(fake.app, "POST", "embeddings", model="fake", input="a")
        await engine.begun.wait()
        answer = await fake.post("embeddings", {"model": "fake", "input": "a"})
        assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
        engine.let.set()
        await client.request


@pytest.mark.shows("G2.2", "G2.3")
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/v3/embeddings"])
async def test_it_is_at_every_path(path: str) -> None:
    async with api() as fake:
        body = json.dumps({"model": "fake", "input": "a"}).encode()
        answer = await call(fake.app, "POST", path, JSON, body=[body])
    assert answer.status == 200
