"""A cross-encoder in OpenVINO's format, behind /v1/rerank and as the model that ranks the hits of searches."""

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.engines.openvino.engine import OpenVino, OpenVinoSettings
from antiphon.errors import BadRequest, UnsupportedParameter
from tests.engines.llamacpp.generation import make_request, run_generation
from tests.engines.openvino.encoder_folders import CONTEXT, write_folder

pytestmark = [pytest.mark.anyio, pytest.mark.needs("openvino"), pytest.mark.timeout(400)]

DOCUMENTS = ["laws are laws", "sleep cats", "cats"]  # the sums of their numbers are -6, 4 and 3


@pytest.fixture(scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenVino]:
    folder: Path = tmp_path_factory.mktemp("folders") / "ranks"
    write_folder(folder, "BertForSequenceClassification", "logits")
    engine = OpenVino(OpenVinoSettings(model=(f"ranks={folder}",), slots=2))
    await engine.open()
    yield engine
    await engine.close()


async def rank(engine: OpenVino, **body: Any) -> dict[str, Any]:
    reply = await engine.pass_through("ranks", "rerank", json.dumps({"model": "ranks", **body}).encode())
    ranking: dict[str, Any] = json.loads(reply.body)
    return ranking


@pytest.mark.shows("C.71")
async def test_documents_are_ranked_by_their_score(engine: OpenVino) -> None:
    assert (await engine.capabilities("ranks")).tasks == {"rerank", "tokenize", "detokenize"}
    ranking = await rank(engine, query="cats", documents=DOCUMENTS)
    assert [result["index"] for result in ranking["results"]] == [1, 2, 0]
    scores = [result["relevance_score"] for result in ranking["results"]]
    assert scores == pytest.approx([1 / (1 + math.exp(-number)) for number in (4, 3, -6)])
    assert ranking["usage"]["total_tokens"] == 3 * 4 + 6  # [CLS] cats [SEP] … [SEP]


async def test_only_the_best_are_returned_with_their_texts_on_request(engine: OpenVino) -> None:
    documents = [DOCUMENTS[0], {"text": DOCUMENTS[1]}, DOCUMENTS[2]]
    ranking = await rank(engine, query="cats", documents=documents, top_n=1, return_documents=True)
    [result] = ranking["results"]
    assert (result["index"], result["document"]) == (1, {"text": "sleep cats"})


async def test_many_documents_are_ranked_in_batches(engine: OpenVino) -> None:
    ranking = await rank(engine, query="cats", documents=[*["laws"] * 40, "cats", *["are"] * 40])
    assert ranking["results"][0]["index"] == 40
    assert len(ranking["results"]) == 81


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": []}, "documents"),
        ({"query": 1}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"truncate": "END"}, "truncate"),
        ({"documents": ["cats " * CONTEXT]}, "documents"),
        ({"documents": ["cats " * 10_000]}, "documents"),
    ],
)
async def test_what_cannot_be_ranked_is_rejected_by_name(engine: OpenVino, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        await rank(engine, **{"query": "cats", "documents": DOCUMENTS, **fields})
    assert caught.value.param == param


async def test_a_model_that_ranks_does_nothing_else(engine: OpenVino) -> None:
    with pytest.raises(UnsupportedParameter, match="ranks documents"):
        await engine.embed("ranks", ["cats"])
    with pytest.raises(UnsupportedParameter, match="does not support the task score"):
        await engine.pass_through("ranks", "score", b"{}")
    with pytest.raises(UnsupportedParameter, match="does not generate text"):
        await run_generation(engine, make_request("x", model="ranks"))
