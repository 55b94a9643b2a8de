"""Tasks of SGLang models that do not generate, and conversion of its rankings to the common format."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.engines.base import PassthroughReply
from antiphon.engines.http.adapters.sglang import normalise_ranking
from antiphon.errors import EngineFailed, UnsupportedParameter
from tests.engines.http.stubs.chat_stub import EngineStub
from tests.engines.http.stubs.dialects import SGLANG
from tests.engines.http.stubs.generation import open_engine
from tests.support.local_servers import serve_tcp

pytestmark = pytest.mark.anyio

COMMON_TASKS = {"tokenize", "detokenize"}
TOKENS = {"id": "x", "prompt_tokens": 3}


def normalise(*entries: dict[str, Any]) -> Any:
    return json.loads(normalise_ranking(PassthroughReply(json.dumps(entries).encode()), "mine", "The engine").body)


def test_a_plain_list_becomes_results_with_relevance_scores() -> None:
    first = {"score": 0.7, "document": "a cat", "index": 1, "meta_info": TOKENS}
    second = {"score": -0.2, "document": "a bill", "index": 0, "meta_info": TOKENS}
    assert normalise(first, second) == {
        "model": "mine",
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
        "results": [
            {"index": 1, "relevance_score": 0.7, "document": {"text": "a cat"}},
            {"index": 0, "relevance_score": -0.2, "document": {"text": "a bill"}},
        ],
    }


def test_results_have_no_documents_if_the_engine_sends_none() -> None:
    without: list[dict[str, Any]] = [
        {"score": 0.7, "index": 0},
        {"score": 0.7, "index": 0, "document": None, "meta_info": None},
    ]
    assert normalise(*without)["results"] == [{"index": 0, "relevance_score": 0.7}] * 2


@pytest.mark.parametrize("body", [b"", b"{}", b'[{"score": "high", "index": 0}]', b"\xff", b"[" * 100_000])
def test_an_invalid_ranking_is_an_error(body: bytes) -> None:
    with pytest.raises(EngineFailed, match="a rerank response that cannot be decoded"):
        normalise_ranking(PassthroughReply(body), "mine", "The engine")


@pytest.mark.shows("C.21", "G.9")
@pytest.mark.parametrize(
    ("embedding", "tasks"),
    [
        ({"task": "embed"}, {"embed"}),
        ({"task": "classify"}, {"rerank", "classify"}),
        (None, {"embed", "rerank", "classify"}),
    ],
    ids=["embeds", "ranks", "an older version"],
)
async def test_the_tasks_are_those_of_the_kind_of_model(embedding: dict[str, Any] | None, tasks: set[str]) -> None:
    """SGLang serves its paths for every model; for an embedding model the first number of a vector would pass for a
    score.
    """
    info = {"is_generation": False} | ({"embedding": embedding} if embedding else {})
    stub = EngineStub(replace(SGLANG, asides={**SGLANG.asides, "/model_info": info}))
    async with serve_tcp(stub.serve) as port, open_engine(f"sglang://127.0.0.1:{port}") as engine:
        assert (await engine.capabilities("m")).tasks == COMMON_TASKS | tasks


async def test_dimensions_are_rejected_if_the_vectors_have_a_fixed_size() -> None:
    info = {"is_generation": False, "embedding": {"task": "embed", "supports_dimensions": False}}
    stub = EngineStub(replace(SGLANG, asides={**SGLANG.asides, "/model_info": info}, embedding="/v1/embeddings"))
    async with serve_tcp(stub.serve) as port, open_engine(f"sglang://127.0.0.1:{port}") as engine:
        assert not (await engine.capabilities("m")).supported_fields
        assert len((await engine.embed("m", ["a"])).vectors) == 1
        with pytest.raises(UnsupportedParameter, match="'dimensions'") as raised:
            await engine.embed("m", ["a"], 8)
    assert raised.value.param == "dimensions"
