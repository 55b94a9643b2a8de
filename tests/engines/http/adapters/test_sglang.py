"""What a model of SGLang's is good for when it does not generate, and its rankings in the shape that others have."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.engines.base import Relayed
from antiphon.engines.http.adapters.sglang import ranked
from antiphon.errors import EngineFailed, UnsupportedParameter
from tests.engines.http.stubs.chat_stub import Stub, tcp
from tests.engines.http.stubs.dialects import SGLANG
from tests.engines.http.stubs.generation import opened

pytestmark = pytest.mark.anyio

EVERY = {"tokenize", "detokenize"}
TOKENS = {"id": "x", "prompt_tokens": 3}


def told(*entries: dict[str, Any]) -> Any:
    return json.loads(ranked(Relayed(json.dumps(entries).encode()), "mine", "The engine").body)


def test_a_bare_list_becomes_results_with_their_relevance() -> None:
    first = {"score": 0.7, "document": "a cat", "index": 1, "meta_info": TOKENS}
    second = {"score": -0.2, "document": "a bill", "index": 0, "meta_info": TOKENS}
    assert told(first, second) == {
        "model": "mine",
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
        "results": [
            {"index": 1, "relevance_score": 0.7, "document": {"text": "a cat"}},
            {"index": 0, "relevance_score": -0.2, "document": {"text": "a bill"}},
        ],
    }


def test_documents_that_were_not_asked_for_are_not_there() -> None:
    without: list[dict[str, Any]] = [
        {"score": 0.7, "index": 0},
        {"score": 0.7, "index": 0, "document": None, "meta_info": None},
    ]
    assert told(*without)["results"] == [{"index": 0, "relevance_score": 0.7}] * 2


@pytest.mark.parametrize("body", [b"", b"{}", b'[{"score": "high", "index": 0}]', b"\xff", b"[" * 100_000])
def test_what_is_no_ranking_is_an_error(body: bytes) -> None:
    with pytest.raises(EngineFailed, match="a ranking that cannot be read"):
        ranked(Relayed(body), "mine", "The engine")


@pytest.mark.shows("C.21", "G.9")
@pytest.mark.parametrize(
    ("embedding", "does"),
    [
        ({"task": "embed"}, {"embed"}),
        ({"task": "classify"}, {"rerank", "classify"}),
        (None, {"embed", "rerank", "classify"}),
    ],
    ids=["embeds", "ranks", "an older version"],
)
async def test_it_does_what_it_was_made_for(embedding: dict[str, Any] | None, does: set[str]) -> None:
    """Its paths are there for every model; of one that embeds, the first number would pass for a rank."""
    info = {"is_generation": False} | ({"embedding": embedding} if embedding else {})
    stub = Stub(replace(SGLANG, asides={**SGLANG.asides, "/model_info": info}))
    async with tcp(stub.serve) as port, opened(f"sglang://127.0.0.1:{port}") as engine:
        assert (await engine.capabilities("m")).does == EVERY | does


async def test_vectors_of_one_size_are_not_asked_for_in_another() -> None:
    info = {"is_generation": False, "embedding": {"task": "embed", "supports_dimensions": False}}
    stub = Stub(replace(SGLANG, asides={**SGLANG.asides, "/model_info": info}, embedding="/v1/embeddings"))
    async with tcp(stub.serve) as port, opened(f"sglang://127.0.0.1:{port}") as engine:
        assert not (await engine.capabilities("m")).honours
        assert len((await engine.embed("m", ["a"])).vectors) == 1
        with pytest.raises(UnsupportedParameter, match="'dimensions'") as raised:
            await engine.embed("m", ["a"], 8)
    assert raised.value.param == "dimensions"
