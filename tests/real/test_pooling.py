"""Models that do not generate, on a real vLLM behind Antiphon: one that embeds, one that ranks, one that classifies.

Nobody trained them, so only the form of what they say is judged, and that it is what vLLM says by itself.
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
from tests.support.server_process import Live, serving
from tools.random_models import CLASSIFIES, EMBEDS, RANKS

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

TEXTS = ["a cat", "a bill was passed"]
CATS = {"query": "where is the cat", "documents": ["a bill", "the cat is on the mat", "dogs bark"]}
DOES = {
    EMBEDS: {"embed", "pooling", "rerank", "score", "tokenize", "detokenize"},
    RANKS: {"classify", "pooling", "rerank", "score", "tokenize", "detokenize"},
    CLASSIFIES: {"classify", "pooling", "tokenize", "detokenize"},
}
NUMBERS = 32  # of a vector
VOLATILE = {"id", "created"}


class Pooled:
    """A server with one of them behind it."""

    def __init__(self, model: str, engine: str, live: Live) -> None:
        self.model = model
        self.client = OpenAI(base_url=live.v1, api_key="unused", max_retries=0, timeout=120)
        self._url = live.url
        self._own = f"http://{engine.partition('://')[2]}"

    def post(self, path: str, **body: Any) -> Any:
        said = self.client.post(f"/{path}", body={"model": self.model, **body}, cast_to=dict[str, Any])
        return {name: value for name, value in said.items() if name not in VOLATILE}

    def without_antiphon(self, path: str, **body: Any) -> Any:
        said = json.loads(self._send(self._own + path, body)[1])
        return {name: value for name, value in said.items() if name not in VOLATILE}

    def raw(self, path: str, **body: Any) -> tuple[Message, bytes]:
        return self._send(self._url + path, body)

    def _send(self, url: str, body: dict[str, Any]) -> tuple[Message, bytes]:
        data, head = json.dumps({"model": self.model, **body}).encode(), {"content-type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, data, head), timeout=60) as answer:
            return answer.headers, answer.read()


@pytest.fixture(scope="module", params=[EMBEDS, RANKS, CLASSIFIES])
def pooled(request: pytest.FixtureRequest) -> Iterator[Pooled]:
    if reason := VLLM.missing() or ("it is vLLM's folder that they are started from" if VLLM.runs else ""):
        pytest.skip(reason)
    with VLLM.running(request.param) as engine, serving("--engine", engine) as live:
        yield Pooled(request.param, engine, live)


def alike(one: Any, other: Any) -> bool:
    """The same, but for the last digits of numbers: they depend on what else is computed at that moment."""
    match one, other:
        case float(), float():
            return math.isclose(one, other, abs_tol=1e-5)
        case dict(), dict():
            return one.keys() == other.keys() and all(alike(value, other[name]) for name, value in one.items())
        case list(), list():
            return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def only(*models: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("pooled", models, indirect=True)


@pytest.mark.shows("C.21", "G.9", "G2.1")
def test_what_it_does_is_told_and_nothing_that_it_does_not(pooled: Pooled) -> None:
    (able,) = pooled.client.get("/capabilities", cast_to=dict[str, Any])["data"]
    assert {*able["does"]} == DOES[pooled.model]
    assert {*able["honours"]} == ({"dimensions", "truncate_prompt_tokens"} if pooled.model == EMBEDS else set())
    assert (able["context"], able["parsers"], able["lacks"]) == (128, {}, {})


@pytest.mark.shows("C.22")
def test_it_is_not_asked_to_generate(pooled: Pooled) -> None:
    chat: Any = [{"role": "user", "content": "Hello!"}]
    for ask in (
        lambda: pooled.client.responses.create(model=pooled.model, input="Hello!"),
        lambda: pooled.client.responses.create(model=pooled.model, input="Hello!", stream=True),
        lambda: pooled.client.chat.completions.create(model=pooled.model, messages=chat),
        lambda: pooled.client.completions.create(model=pooled.model, prompt="Hello!"),
    ):
        with pytest.raises(openai.BadRequestError, match="does not generate") as raised:
            ask()
        assert raised.value.param == "model"


@only(EMBEDS)
@pytest.mark.shows("C.27")
@pytest.mark.parametrize("asked", [TEXTS, [[2, 5, 6, 3], [2, 7, 3]]], ids=["texts", "tokens"])
def test_vectors_are_those_of_vllm(pooled: Pooled, asked: Any) -> None:
    made = pooled.client.embeddings.create(model=pooled.model, input=asked)
    own = pooled.without_antiphon("/v1/embeddings", input=asked)
    assert made.usage.prompt_tokens == own["usage"]["prompt_tokens"]
    for one, other in zip(made.data, own["data"], strict=True):
        assert one.embedding == pytest.approx(other["embedding"], abs=1e-5)
        assert math.hypot(*one.embedding) == pytest.approx(1, abs=1e-5)


@only(EMBEDS)
@pytest.mark.shows("C.27")
def test_what_is_too_long_to_embed_is_refused_or_cut_as_the_client_likes(pooled: Pooled) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        pooled.client.embeddings.create(model=pooled.model, input="word " * 200)
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "input")
    for most, tokens in ((-1, 128), (8, 8)):
        made = pooled.client.embeddings.create(
            model=pooled.model, input="word " * 200, extra_body={"truncate_prompt_tokens": most}
        )
        assert made.usage.prompt_tokens == tokens


@only(EMBEDS, RANKS)
@pytest.mark.shows("G.8")
@pytest.mark.parametrize("path", ["rerank", "../v2/rerank", "../rerank"])
def test_documents_are_ranked_as_vllm_ranks_them(pooled: Pooled, path: str) -> None:
    ranked = pooled.post(path, **CATS)
    assert alike(ranked, pooled.without_antiphon("/rerank", **CATS))
    scores = [each["relevance_score"] for each in ranked["results"]]
    assert (scores, len(scores)) == (sorted(scores, reverse=True), 3)
    assert alike(pooled.post(path, **CATS, top_n=1)["results"], ranked["results"][:1])


@only(EMBEDS, RANKS)
@pytest.mark.shows("G.8")
@pytest.mark.parametrize("texts", [("text_1", "text_2"), ("queries", "documents")])
def test_pairs_are_scored_as_vllm_scores_them(pooled: Pooled, texts: tuple[str, str]) -> None:
    asked = dict(zip(texts, ("a cat", TEXTS), strict=True))
    scored = pooled.post("score", **asked)
    assert alike(scored, pooled.without_antiphon("/score", **asked))
    assert [each["index"] for each in scored["data"]] == [0, 1]


@only(RANKS)
@pytest.mark.shows("G.8")
def test_what_cannot_be_ranked_is_a_400_with_vllms_words(pooled: Pooled) -> None:
    for path, asked, words in (
        ("rerank", {"query": "cat"}, "documents"),
        ("rerank", {"query": "cat", "documents": []}, "At least one"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "1:1, 1:N or N:N"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            pooled.post(path, **asked)
    with pytest.raises(openai.BadRequestError) as raised:
        pooled.post("score", text_1="cat", text_2="word " * 200)
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", None)


@only(RANKS, CLASSIFIES)
@pytest.mark.shows("G2.1")
def test_texts_are_classified_as_vllm_classifies_them(pooled: Pooled) -> None:
    classes = pooled.post("classify", input=TEXTS)
    assert alike(classes, pooled.without_antiphon("/classify", input=TEXTS))
    labels = 1 if pooled.model == RANKS else 3
    assert [len(each["probs"]) for each in classes["data"]] == [labels, labels]


@pytest.mark.shows("G2.1")
def test_states_are_pooled_as_vllm_pools_them(pooled: Pooled) -> None:
    states = pooled.post("pooling", input="a cat")
    assert alike(states, pooled.without_antiphon("/pooling", input="a cat"))
    (packed,) = pooled.post("pooling", input="a cat", encoding_format="base64")["data"]
    (plain,) = states["data"]
    assert struct.unpack(f"<{len(plain['data'])}f", b64decode(packed["data"])) == pytest.approx(plain["data"], abs=1e-5)


@only(EMBEDS)
@pytest.mark.shows("G2.1")
def test_pooled_states_come_as_bare_bytes_too(pooled: Pooled) -> None:
    numbers = [each["data"] for each in pooled.post("pooling", input=TEXTS)["data"]]
    for form in ("bytes", "bytes_only"):
        head, body = pooled.raw("/v1/pooling", input=TEXTS, encoding_format=form)
        assert struct.unpack(f"<{2 * NUMBERS}f", body) == pytest.approx(numbers[0] + numbers[1], abs=1e-6)
        assert head["content-type"] == "application/octet-stream"
        assert ("metadata" in head) is (form == "bytes")
        if form == "bytes":
            told = json.loads(head["metadata"])
            assert (told["model"], [each["end"] for each in told["data"]]) == (pooled.model, [128, 256])


def test_what_it_does_not_do_is_a_404(pooled: Pooled) -> None:
    for path, deed in (("embeddings", "embed"), ("score", "score"), ("classify", "classify")):
        if deed not in DOES[pooled.model]:
            with pytest.raises(openai.NotFoundError):
                pooled.post(path, input="a", text_1="a", text_2="b")
