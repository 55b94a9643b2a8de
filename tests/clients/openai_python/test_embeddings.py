"""The openai package's embeddings, against real servers: the fake engine, and the embedded one with its own model.

The SDK asks for base64 unless it is told otherwise, and gives numbers in any case.
"""

import json
import math

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.oracles.responses import check_embeddings
from tests.support.server_process import Live

MINI = "all-minilm-l6-v2"


@pytest.mark.shows("G.4", "C.27")
def test_the_sdk_reads_base64_and_numbers_alike(client: OpenAI) -> None:
    texts = ["the cat sat", "a law was passed"]
    by_default = client.embeddings.create(model="fake", input=texts)
    asked_for = client.embeddings.create(model="fake", input=texts, encoding_format="float")
    check_embeddings(json.loads(asked_for.to_json()))
    for one, other in zip(by_default.data, asked_for.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, rel=1e-6)
    assert by_default.usage == asked_for.usage
    assert [each.index for each in by_default.data] == [0, 1]


@pytest.mark.anyio
async def test_the_async_client_gets_the_same(async_client: AsyncOpenAI, client: OpenAI) -> None:
    mine = await async_client.embeddings.create(model="fake", input="hello", dimensions=16)
    theirs = client.embeddings.create(model="fake", input="hello", dimensions=16)
    assert mine.data == theirs.data
    assert len(mine.data[0].embedding) == 16


def test_an_empty_text_is_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="fake", input="")
    assert caught.value.param == "input"


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
@pytest.mark.shows("C.1", "C.27", "G.4")
def test_a_server_without_any_set_up_makes_real_embeddings(small: OpenAI) -> None:
    assert MINI in [model.id for model in small.models.list()]
    texts = ["How do I reset my password?", "I forgot my login and need a new one.", "The soup needs more salt."]
    made = small.embeddings.create(model=MINI, input=texts)
    one, same, other = [each.embedding for each in made.data]
    assert len(one) == 384
    assert math.isclose(sum(number * number for number in one), 1, rel_tol=1e-4)
    cosines = [sum(left * right for left, right in zip(one, each, strict=True)) for each in (same, other)]
    assert cosines[0] > 0.5 > 0.2 > cosines[1]
    assert made.usage.prompt_tokens == made.usage.total_tokens == 30


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
def test_each_of_its_models_says_what_it_is_not_for(small: OpenAI, embedded: Live) -> None:
    with pytest.raises(openai.NotFoundError, match=f"makes no embeddings. Of those here, this does: {MINI}"):
        small.embeddings.create(model="smollm2-135m-instruct", input="a")
    with pytest.raises(openai.BadRequestError, match="does not generate"):
        small.responses.create(model=MINI, input="Hello!")
    with pytest.raises(openai.BadRequestError, match="384 dimensions"):
        small.embeddings.create(model=MINI, input="a", dimensions=100)
    with pytest.raises(openai.BadRequestError) as caught:
        small.embeddings.create(model=MINI, input="word " * 600)
    assert caught.value.code == "context_length_exceeded"
    status, told = embedded.get("/v3/capabilities")
    does = {each["model"]: each["does"] for each in json.loads(told)["data"]}
    assert status == 200
    assert does[MINI] == ["detokenize", "embed", "tokenize"]


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
@pytest.mark.shows("G.6")
def test_the_embedded_model_tells_its_tokens(embedded: Live) -> None:
    chat = {"model": "smollm2-135m-instruct", "messages": [{"role": "user", "content": "Hello!"}]}
    status, told = embedded.send("POST", "/tokenize", {**chat, "return_token_strs": True})
    tokenized = json.loads(told)
    assert (status, tokenized["count"]) == (200, len(tokenized["tokens"]))
    assert tokenized["max_model_len"] == 512
    assert "".join(tokenized["token_strs"]).endswith("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n")
    _, counted = embedded.send("POST", "/v1/chat/completions", {**chat, "max_tokens": 1})
    assert json.loads(counted)["usage"]["prompt_tokens"] == tokenized["count"]
    _, text = embedded.send("POST", "/detokenize", {"model": chat["model"], "tokens": tokenized["tokens"]})
    assert json.loads(text)["prompt"] == "".join(tokenized["token_strs"])
