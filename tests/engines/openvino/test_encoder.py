"""Embeddings by OpenVINO: of the default model, compared with llama.cpp, and of folders in OpenVINO's format.

`tests/engines/llamacpp/test_embedding.py` has the tests that both engines pass.

Covers `engines/openvino/encoder.py` and `engines/openvino/bert_graph.py`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from antiphon.config.base_folders import cache_home
from antiphon.core.prompt import Segment, TextPrompt
from antiphon.engines.embedded.known_models import EMBEDDING_MODEL
from antiphon.engines.embedded.model_files import fetch_model
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.engines.openvino.engine import OpenVino, OpenVinoSettings
from antiphon.errors import ContextTooLong, StartupError
from tests.engines.openvino.encoder_folders import CONTEXT, TABLE, VOCABULARY, write_folder
from tests.engines.openvino.test_wordpiece import DIFFICULT_TEXTS

pytestmark = [pytest.mark.anyio, pytest.mark.needs("openvino"), pytest.mark.timeout(400)]


@asynccontextmanager
async def open_folder(folder: Path) -> AsyncIterator[OpenVino]:
    engine = OpenVino(OpenVinoSettings(model=(f"small={folder}",), slots=2))
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.shows("C.70")
async def test_both_engines_embed_alike() -> None:
    """So vectors in a store need no note of the engine, and OpenVINO can be installed and removed at any time."""
    minilm = fetch_model(EMBEDDING_MODEL, cache_home())
    results = []
    for by_llamacpp in (True, False):
        engine = LlamaCpp(LlamaCppSettings(model=(f"mini={minilm}",), slots=1, llamacpp_embeddings=by_llamacpp))
        await engine.open()
        try:
            async with asyncio.timeout(120):
                results.append(await engine.embed("mini", DIFFICULT_TEXTS, truncate=-1))
        finally:
            await engine.close()
    expected, found = (np.array(result.vectors) for result in results)
    assert (expected * found).sum(axis=1).min() > 0.9999
    assert results[0].tokens == results[1].tokens


def normalise(vector: np.ndarray) -> list[float]:
    numbers: list[float] = (vector / np.linalg.norm(vector)).tolist()
    return numbers


@pytest.mark.real_engine
@pytest.mark.shows("C.71")
@pytest.mark.parametrize(
    ("output", "pooling", "expected"),
    [
        ("last_hidden_state", None, TABLE[[2, 4, 5, 3]].mean(axis=0)),
        ("last_hidden_state", {"pooling_mode_mean_tokens": True}, TABLE[[2, 4, 5, 3]].mean(axis=0)),
        ("last_hidden_state", {"pooling_mode_cls_token": True}, TABLE[2]),
        ("last_hidden_state", {"pooling_mode_lasttoken": True}, TABLE[3]),
        ("sentence_embedding", None, TABLE[[2, 4, 5, 3]].sum(axis=0)),
    ],
)
async def test_a_folder_embeds_with_the_pooling_that_it_names(
    tmp_path: Path, output: str, pooling: dict[str, bool] | None, expected: np.ndarray
) -> None:
    async with open_folder(write_folder(tmp_path / "small", "BertModel", output, pooling)) as engine:
        vectors = (await engine.embed("small", ["cats sleep", "laws are laws", "cats sleep"])).vectors  # two are padded
        assert vectors[0] == vectors[2]
        assert vectors[0] == pytest.approx(normalise(expected), abs=1e-6)


@pytest.mark.shows("C.71")
async def test_a_folder_has_its_own_tokenizer_and_its_limit(tmp_path: Path) -> None:
    async with open_folder(write_folder(tmp_path / "small", "BertModel", "last_hidden_state")) as engine:
        assert (await engine.capabilities("small")).context == CONTEXT
        prompt = TextPrompt((Segment("cats [SEP] sleepn", control=False),))
        tokens = await engine.tokenize("small", prompt)
        assert [VOCABULARY[token] for token in tokens].count("[SEP]") == 1
        assert tokens[-3:] == (5, 8, 3)
        assert await engine.detokenize("small", [2, 4, 3]) == "[CLS]cats[SEP]"
        with pytest.raises(ContextTooLong, match=f"Input 0 has 22 tokens, and this model takes {CONTEXT}"):
            await engine.embed("small", ["cats " * 20])
        assert (await engine.embed("small", ["cats " * 20], truncate=-1)).tokens == CONTEXT


@pytest.mark.real_engine
@pytest.mark.shows("C.71")
async def test_a_folder_without_a_usable_output_is_rejected(tmp_path: Path) -> None:
    for architecture, output, message in (
        ("BertModel", "other", "it returns no vectors, but other"),
        ("BertForSequenceClassification", "sentence_embedding", "it does not return one score for each text"),
    ):
        with pytest.raises(StartupError, match=message):
            async with open_folder(write_folder(tmp_path / output, architecture, output)):
                pass


def test_texts_are_grouped_by_length() -> None:
    from antiphon.engines.openvino.encoder import group_by_length

    assert [*group_by_length([10, 100, 8, 80, 5])] == [[1, 3], [0, 2], [4]]
    assert [*group_by_length([])] == []
