"""WordPiece gives the tokens of llama.cpp."""

import sys
import unicodedata
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.config.base_folders import cache_home
from antiphon.core.prompt import Segment, TextPrompt
from antiphon.engines.embedded.known_models import EMBEDDING_MODEL
from antiphon.engines.embedded.model_files import fetch_model
from antiphon.engines.gguf import GgufContent, read_content
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.engines.openvino import wordpiece
from antiphon.engines.openvino.wordpiece import CharacterTable, WordPiece

DIFFICULT_TEXTS = [
    "", " ", "\t a \r\n\n b\u00a0c\u3000d\u2028e\u200bf\ufefff\x00g\x1ch\x85i", "x" * 300, "words " * 700, "ａ\ufffdb",
    "Ünïcödé: ÀÉÎÕÜ ñ ç ß ﬁ Œ Ǆ İstanbul ΣΊΣΥΦΟΣ Йё", "e\u0301 a\u0308\u0323 \u0301alone", "Ａｂｃ １２３ ½ ² ①",
    "中文テスト한국어 漢字とかな 𠀀𪜀", "😀👩\u200d👩\u200d👧 🇩🇪 ❤\ufe0f e😀e", "हिन्दी العربية עִבְרִית ไทย",
    "don't stop... (really)? $5.00 €5 50% a+b=c <tag> #x @y ^_^ `z`~", "\U000e0001\ue000a\uf8ff",
    "supercalifragilisticexpialidocious antidisestablishmentarianism", "[CLS] [SEP] [MASK] ##ing ▁word",
    "https://example.com/a?b=c&d=é",
]  # fmt: skip


@pytest.fixture(scope="module")
def minilm() -> Path:
    return fetch_model(EMBEDDING_MODEL, cache_home())


@pytest.fixture(scope="module")
async def llamacpp(minilm: Path) -> AsyncIterator[LlamaCpp]:
    engine = LlamaCpp(LlamaCppSettings(model=(f"mini={minilm}",), slots=1, llamacpp_embeddings=True))
    await engine.open()
    yield engine
    await engine.close()


async def tokenize(engine: LlamaCpp, text: str) -> list[int]:
    return [*await engine.tokenize("mini", TextPrompt((Segment(text, control=False),)), special=False)]


@pytest.mark.anyio
@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.shows("C.70")
@pytest.mark.timeout(400)
async def test_tokens_are_those_of_llama_cpp(minilm: Path, llamacpp: LlamaCpp) -> None:
    tokenizer = WordPiece(read_content(minilm))
    for text in DIFFICULT_TEXTS:
        split = text.replace("[", "[ ")  # names of control tokens reach a tokenizer only in parts
        assert tokenizer.encode(split) == await tokenize(llamacpp, split), ascii(text)[:80]
    assert tokenizer.encode("a", add_special=True) == [101, 1037, 102]
    tokens = [101, *tokenizer.encode("Embeddings, really?"), 102, 100]
    assert tokenizer.decode(tokens) == await llamacpp.detokenize("mini", tokens)


@pytest.mark.anyio
@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.shows("C.70")
@pytest.mark.timeout(400)
async def test_every_character_is_treated_as_by_llama_cpp(minilm: Path, llamacpp: LlamaCpp) -> None:
    """Except for those that only one of llama.cpp and Python knows: their versions of Unicode differ."""
    tokenizer = WordPiece(read_content(minilm))
    characters = [character for character in map(chr, range(sys.maxunicode + 1)) if is_assigned(character)]
    different: list[str] = []
    for at in range(0, len(characters), 1000):
        part = characters[at : at + 1000]
        text = " ".join([f"a{character}b {character}" for character in part])
        if tokenizer.encode(text) != await tokenize(llamacpp, text):
            texts = {character: f"a{character}b {character}" for character in part}
            different += [c for c in part if tokenizer.encode(texts[c]) != await tokenize(llamacpp, texts[c])]
    assert len(different) <= (0 if unicodedata.unidata_version < "15.1" else 300), ascii(different)


def is_assigned(character: str) -> bool:
    return unicodedata.category(character) not in ("Cn", "Cs") and ord(character) < 0xF0000


def test_a_word_is_split_into_its_longest_pieces_or_unknown() -> None:
    tokens = ["[UNK]", "▁un", "▁u", "n", "happy", "▁unhappily", "y"]
    tokenizer = WordPiece(GgufContent({"tokenizer.ggml.unknown_token_id": 0}, tokens, {}))
    assert tokenizer.encode("unhappy UNHAPPILY unhappyx un") == [1, 4, 5, 0, 1]
    assert tokenizer.encode("u" + "n" * 100) == [1, *[3] * 99]
    assert tokenizer.decode([1, 4, 5]) == " unhappy unhappily"


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wordpiece, "MAX_CACHED_CHARACTERS", 3)
    table = CharacterTable()
    assert "ABÉÖü".translate(table) == "abeou"
    assert len(table) == 3
