"""A real SGLang that was started for embeddings, behind Antiphon: vectors are passed through, and other tasks are
rejected.
"""

import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.real.engine_locations import SGLANG, open_client
from tools.random_models import EMBEDDING_MODEL

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with open_client(SGLANG, EMBEDDING_MODEL) as openai_client:
        yield openai_client


@pytest.mark.shows("C.21", "C.27")
def test_vectors_are_passed_through(client: OpenAI) -> None:
    embeddings = client.embeddings.create(model=EMBEDDING_MODEL, input=["a cat", "a bill", "a cat"])
    first, second, third = [one.embedding for one in embeddings.data]
    assert math.isclose(sum(number * number for number in first), 1, abs_tol=1e-3)
    assert first == pytest.approx(third, abs=1e-4)
    assert first != pytest.approx(second, abs=1e-2)
    assert embeddings.usage.prompt_tokens == 6


@pytest.mark.shows("C.21", "C.22")
def test_only_embedding_is_published_and_other_tasks_are_rejected(client: OpenAI) -> None:
    (capabilities,) = client.get("/capabilities", cast_to=dict[str, Any])["data"]
    assert (sorted(capabilities["does"]), capabilities["honours"]) == (["detokenize", "embed", "tokenize"], [])
    with pytest.raises(openai.BadRequestError, match="'dimensions'"):
        client.embeddings.create(model=EMBEDDING_MODEL, input="a cat", dimensions=8)
    with pytest.raises(openai.BadRequestError, match="does not generate"):
        client.responses.create(model=EMBEDDING_MODEL, input="Hello!")
    with pytest.raises(openai.NotFoundError):
        client.post(
            "/rerank", body={"model": EMBEDDING_MODEL, "query": "a", "documents": ["b"]}, cast_to=dict[str, Any]
        )
