"""A real SGLang behind Antiphon that was started to embed: its vectors come through, and all else is refused."""

import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.real.engine_locations import SGLANG, client_of
from tools.random_models import EMBEDS

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with client_of(SGLANG, EMBEDS) as made:
        yield made


@pytest.mark.shows("C.21", "C.27")
def test_vectors_come_through_and_are_those_of_their_texts(client: OpenAI) -> None:
    made = client.embeddings.create(model=EMBEDS, input=["a cat", "a bill", "a cat"])
    first, second, third = [one.embedding for one in made.data]
    assert math.isclose(sum(number * number for number in first), 1, abs_tol=1e-3)
    assert first == pytest.approx(third, abs=1e-4)
    assert first != pytest.approx(second, abs=1e-2)
    assert made.usage.prompt_tokens == 6


@pytest.mark.shows("C.21", "C.22")
def test_it_is_shown_as_one_that_embeds_and_refuses_all_else_by_name(client: OpenAI) -> None:
    (able,) = client.get("/capabilities", cast_to=dict[str, Any])["data"]
    assert (sorted(able["does"]), able["honours"]) == (["detokenize", "embed", "tokenize"], [])
    with pytest.raises(openai.BadRequestError, match="'dimensions'"):
        client.embeddings.create(model=EMBEDS, input="a cat", dimensions=8)
    with pytest.raises(openai.BadRequestError, match="does not generate"):
        client.responses.create(model=EMBEDS, input="Hello!")
    with pytest.raises(openai.NotFoundError):
        client.post("/rerank", body={"model": EMBEDS, "query": "a", "documents": ["b"]}, cast_to=dict[str, Any])
