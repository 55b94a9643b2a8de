"""Embeddings with the `openai` package against real servers: the fake engine, and the embedded engine with its own
model.

The package requests base64 by default, and returns numbers in either case.
"""

import json
import math

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.oracles.responses import check_embeddings
from tests.support.server_process import ServerProcess

EMBEDDING_MODEL = "all-minilm-l6-v2"


@pytest.mark.shows("G.4", "C.27")
def test_base64_and_float_embeddings_are_equal(client: OpenAI) -> None:
    texts = ["the cat sat", "a law was passed"]
    as_base64 = client.embeddings.create(model="fake", input=texts)
    as_float = client.embeddings.create(model="fake", input=texts, encoding_format="float")
    check_embeddings(json.loads(as_float.to_json()))
    for one, other in zip(as_base64.data, as_float.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, rel=1e-6)
    assert as_base64.usage == as_float.usage
    assert [each.index for each in as_base64.data] == [0, 1]


@pytest.mark.anyio
async def test_the_async_client_gets_the_same_embeddings(async_client: AsyncOpenAI, client: OpenAI) -> None:
    from_async = await async_client.embeddings.create(model="fake", input="hello", dimensions=16)
    from_sync = client.embeddings.create(model="fake", input="hello", dimensions=16)
    assert from_async.data == from_sync.data
    assert len(from_async.data[0].embedding) == 16


def test_an_empty_text_is_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="fake", input="")
    assert caught.value.param == "input"


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
@pytest.mark.shows("C.1", "C.27", "G.4")
def test_a_server_without_configuration_returns_real_embeddings(default_client: OpenAI) -> None:
    assert EMBEDDING_MODEL in [model.id for model in default_client.models.list()]
    texts = ["How do I reset my password?", "I forgot my login and need a new one.", "The soup needs more salt."]
    made = default_client.embeddings.create(model=EMBEDDING_MODEL, input=texts)
    one, same, other = [each.embedding for each in made.data]
    assert len(one) == 384
    assert math.isclose(sum(number * number for number in one), 1, rel_tol=1e-4)
    cosines = [sum(x * y for x, y in zip(one, each, strict=True)) for each in (same, other)]
    assert cosines[0] > 0.5 > 0.2 > cosines[1]
    assert made.usage.prompt_tokens == made.usage.total_tokens == 30


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
def test_each_embedded_model_rejects_unsupported_requests(
    default_client: OpenAI, default_server: ServerProcess
) -> None:
    with pytest.raises(openai.NotFoundError, match=f"does not create embeddings. Models that do: {EMBEDDING_MODEL}"):
        default_client.embeddings.create(model="smollm2-135m-instruct", input="a")
    with pytest.raises(openai.BadRequestError, match="does not generate"):
        default_client.responses.create(model=EMBEDDING_MODEL, input="Hello!")
    with pytest.raises(openai.BadRequestError, match="384 dimensions"):
        default_client.embeddings.create(model=EMBEDDING_MODEL, input="a", dimensions=100)
    with pytest.raises(openai.BadRequestError) as caught:
        default_client.embeddings.create(model=EMBEDDING_MODEL, input="word " * 600)
    assert caught.value.code == "context_length_exceeded"
    status, body = default_server.get("/v3/capabilities")
    tasks = {each["model"]: each["does"] for each in json.loads(body)["data"]}
    assert status == 200
    assert tasks[EMBEDDING_MODEL] == ["detokenize", "embed", "tokenize"]


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
@pytest.mark.shows("G.6")
def test_the_embedded_model_tokenizes_and_detokenizes(default_server: ServerProcess) -> None:
    chat = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "Hello!"}]}
    status, body = default_server.send("POST", "/tokenize", {**chat, "return_token_strs": True})
    tokenized = json.loads(body)
    assert (status, tokenized["count"]) == (200, len(tokenized["tokens"]))
    assert tokenized["max_model_len"] == 512
    assert "".join(tokenized["token_strs"]).endswith("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n")
    _, counted = default_server.send("POST", "/v1/chat/completions", {**chat, "max_tokens": 1})
    assert json.loads(counted)["usage"]["prompt_tokens"] == tokenized["count"]
    _, text = default_server.send("POST", "/detokenize", {"model": chat["model"], "tokens": tokenized["tokens"]})
    assert json.loads(text)["prompt"] == "".join(tokenized["token_strs"])
