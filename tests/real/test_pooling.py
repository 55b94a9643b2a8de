"""Models that do not generate, on a real vLLM behind Antiphon: one for embeddings, one for ranking, one for
classification.

The models are untrained, so the tests check only the form of the results, and that vLLM alone returns the same.
"""

import json
import math
import struct
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from email.message import Message
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.real.engine_locations import VLLM
from tests.support.server_process import ServerProcess, run_server
from tools.random_models import CLASSIFICATION_MODEL, EMBEDDING_MODEL, RERANKING_MODEL

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

TEXTS = ["a cat", "a bill was passed"]
CATS = {"query": "where is the cat", "documents": ["a bill", "the cat is on the mat", "dogs bark"]}
DOES = {
    EMBEDDING_MODEL: {"embed", "pooling", "rerank", "score", "tokenize", "detokenize"},
    RERANKING_MODEL: {"classify", "pooling", "rerank", "score", "tokenize", "detokenize"},
    CLASSIFICATION_MODEL: {"classify", "pooling", "tokenize", "detokenize"},
}
DIMENSIONS = 32  # length of a vector
VOLATILE = {"id", "created"}


class PoolingServer:
    """A server in front of one of these models."""

    def __init__(self, model: str, engine: str, server: ServerProcess) -> None:
        self.model = model
        self.client = OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=120)
        self._url = server.url
        self._engine_url = f"http://{engine.partition('://')[2]}"

    def post(self, path: str, **body: Any) -> Any:
        result = self.client.post(f"/{path}", body={"model": self.model, **body}, cast_to=dict[str, Any])
        return {name: value for name, value in result.items() if name not in VOLATILE}

    def post_to_engine(self, path: str, **body: Any) -> Any:
        result = json.loads(self._send(self._engine_url + path, body)[1])
        return {name: value for name, value in result.items() if name not in VOLATILE}

    def post_raw(self, path: str, **body: Any) -> tuple[Message, bytes]:
        return self._send(self._url + path, body)

    def _send(self, url: str, body: dict[str, Any]) -> tuple[Message, bytes]:
        data, head = json.dumps({"model": self.model, **body}).encode(), {"content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, data, head), timeout=60) as answer:
            return answer.headers, answer.read()


@pytest.fixture(scope="module", params=[EMBEDDING_MODEL, RERANKING_MODEL, CLASSIFICATION_MODEL])
def pooling_server(request: pytest.FixtureRequest) -> Iterator[PoolingServer]:
    if reason := VLLM.explain_missing() or (
        "vLLM has to be given as a folder, to start it with these models" if VLLM.is_running else ""
    ):
        pytest.skip(f"real engine: {reason}")
    with VLLM.run(request.param) as engine, run_server("--engine", engine) as server:
        yield PoolingServer(request.param, engine, server)


def is_close(one: Any, other: Any) -> bool:
    """Equality except for the last digits of numbers, which depend on the other requests in the batch."""
    match one, other:
        case float(), float():
            return math.isclose(one, other, abs_tol=1e-5)
        case dict(), dict():
            return one.keys() == other.keys() and all(is_close(value, other[name]) for name, value in one.items())
        case list(), list():
            return len(one) == len(other) and all(map(is_close, one, other))
    return bool(one == other)


def parametrize_models(*models: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pooling_server", models, indirect=True)


@pytest.mark.shows("C.21", "G.9", "G2.1")
def test_capabilities_list_exactly_the_tasks_of_the_model(pooling_server: PoolingServer) -> None:
    (capabilities,) = pooling_server.client.get("/capabilities", cast_to=dict[str, Any])["data"]
    assert {*capabilities["does"]} == DOES[pooling_server.model]
    assert {*capabilities["honours"]} == (
        {"dimensions", "truncate_prompt_tokens"} if pooling_server.model == EMBEDDING_MODEL else set()
    )
    assert (capabilities["context"], capabilities["parsers"], capabilities["lacks"]) == (128, {}, {})


@pytest.mark.shows("C.22")
def test_requests_to_generate_are_rejected(pooling_server: PoolingServer) -> None:
    chat: Any = [{"role": "user", "content": "Hello!"}]
    for send in (
        lambda: pooling_server.client.responses.create(model=pooling_server.model, input="Hello!"),
        lambda: pooling_server.client.responses.create(model=pooling_server.model, input="Hello!", stream=True),
        lambda: pooling_server.client.chat.completions.create(model=pooling_server.model, messages=chat),
        lambda: pooling_server.client.completions.create(model=pooling_server.model, prompt="Hello!"),
    ):
        with pytest.raises(openai.BadRequestError, match="does not generate") as raised:
            send()
        assert raised.value.param == "model"


@parametrize_models(EMBEDDING_MODEL)
@pytest.mark.shows("C.27")
@pytest.mark.parametrize("inputs", [TEXTS, [[2, 5, 6, 3], [2, 7, 3]]], ids=["texts", "tokens"])
def test_vectors_equal_those_of_vllm(pooling_server: PoolingServer, inputs: Any) -> None:
    embeddings = pooling_server.client.embeddings.create(model=pooling_server.model, input=inputs)
    direct = pooling_server.post_to_engine("/v1/embeddings", input=inputs)
    assert embeddings.usage.prompt_tokens == direct["usage"]["prompt_tokens"]
    for one, other in zip(embeddings.data, direct["data"], strict=True):
        assert one.embedding == pytest.approx(other["embedding"], abs=1e-5)
        assert math.hypot(*one.embedding) == pytest.approx(1, abs=1e-5)


@parametrize_models(EMBEDDING_MODEL)
@pytest.mark.shows("C.27")
def test_too_long_inputs_are_rejected_or_truncated_on_request(pooling_server: PoolingServer) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        pooling_server.client.embeddings.create(model=pooling_server.model, input="word " * 200)
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "input")
    for limit, tokens in ((-1, 128), (8, 8)):
        embeddings = pooling_server.client.embeddings.create(
            model=pooling_server.model, input="word " * 200, extra_body={"truncate_prompt_tokens": limit}
        )
        assert embeddings.usage.prompt_tokens == tokens


@parametrize_models(EMBEDDING_MODEL, RERANKING_MODEL)
@pytest.mark.shows("G.8")
@pytest.mark.parametrize("path", ["rerank", "../v2/rerank", "../rerank"])
def test_documents_are_ranked_as_vllm_ranks_them(pooling_server: PoolingServer, path: str) -> None:
    ranked = pooling_server.post(path, **CATS)
    assert is_close(ranked, pooling_server.post_to_engine("/rerank", **CATS))
    scores = [each["relevance_score"] for each in ranked["results"]]
    assert (scores, len(scores)) == (sorted(scores, reverse=True), 3)
    assert is_close(pooling_server.post(path, **CATS, top_n=1)["results"], ranked["results"][:1])


@parametrize_models(EMBEDDING_MODEL, RERANKING_MODEL)
@pytest.mark.shows("G.8")
@pytest.mark.parametrize("texts", [("text_1", "text_2"), ("queries", "documents")])
def test_pairs_are_scored_as_vllm_scores_them(pooling_server: PoolingServer, texts: tuple[str, str]) -> None:
    fields = dict(zip(texts, ("a cat", TEXTS), strict=True))
    scored = pooling_server.post("score", **fields)
    assert is_close(scored, pooling_server.post_to_engine("/score", **fields))
    assert [each["index"] for each in scored["data"]] == [0, 1]


@parametrize_models(RERANKING_MODEL)
@pytest.mark.shows("G.8")
def test_invalid_ranking_requests_are_a_400_with_the_message_of_vllm(pooling_server: PoolingServer) -> None:
    for path, fields, message in (
        ("rerank", {"query": "cat"}, "documents"),
        ("rerank", {"query": "cat", "documents": []}, "At least one"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "1:1, 1:N or N:N"),
    ):
        with pytest.raises(openai.BadRequestError, match=message):
            pooling_server.post(path, **fields)
    with pytest.raises(openai.BadRequestError) as raised:
        pooling_server.post("score", text_1="cat", text_2="word " * 200)
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", None)


@parametrize_models(RERANKING_MODEL, CLASSIFICATION_MODEL)
@pytest.mark.shows("G2.1")
def test_texts_are_classified_as_vllm_classifies_them(pooling_server: PoolingServer) -> None:
    classes = pooling_server.post("classify", input=TEXTS)
    assert is_close(classes, pooling_server.post_to_engine("/classify", input=TEXTS))
    labels = 1 if pooling_server.model == RERANKING_MODEL else 3
    assert [len(each["probs"]) for each in classes["data"]] == [labels, labels]


@pytest.mark.shows("G2.1")
def test_states_are_pooled_as_vllm_pools_them(pooling_server: PoolingServer) -> None:
    states = pooling_server.post("pooling", input="a cat")
    assert is_close(states, pooling_server.post_to_engine("/pooling", input="a cat"))
    (packed,) = pooling_server.post("pooling", input="a cat", encoding_format="base64")["data"]
    (plain,) = states["data"]
    assert struct.unpack(f"<{len(plain['data'])}f", b64decode(packed["data"])) == pytest.approx(plain["data"], abs=1e-5)


@parametrize_models(EMBEDDING_MODEL)
@pytest.mark.shows("G2.1")
def test_pooled_states_are_returned_as_raw_bytes(pooling_server: PoolingServer) -> None:
    numbers = [each["data"] for each in pooling_server.post("pooling", input=TEXTS)["data"]]
    for form in ("bytes", "bytes_only"):
        head, body = pooling_server.post_raw("/v1/pooling", input=TEXTS, encoding_format=form)
        assert struct.unpack(f"<{2 * DIMENSIONS}f", body) == pytest.approx(numbers[0] + numbers[1], abs=1e-6)
        assert head["content-type"] == "application/octet-stream"
        assert ("metadata" in head) is (form == "bytes")
        if form == "bytes":
            metadata = json.loads(head["metadata"])
            assert (metadata["model"], [each["end"] for each in metadata["data"]]) == (pooling_server.model, [128, 256])


def test_an_unsupported_task_is_a_404(pooling_server: PoolingServer) -> None:
    for path, task in (("embeddings", "embed"), ("score", "score"), ("classify", "classify")):
        if task not in DOES[pooling_server.model]:
            with pytest.raises(openai.NotFoundError):
                pooling_server.post(path, input="a", text_1="a", text_2="b")
