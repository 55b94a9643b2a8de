"""Conversion of a tiny handmade sentence encoder to a GGUF file.

Covers `engines/embedded/bert_converter.py`.
"""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.engines.embedded.bert_converter import convert_bert
from antiphon.engines.gguf import read_header
from antiphon.errors import StartupError
from tests.engines.llamacpp.encoder_files import FILES, VOCAB, make_safetensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def convert(folder: Path, *progress: Callable[[int, int], None]) -> Path:
    convert_bert(folder, "tiny", folder / "tiny.gguf", progress[0] if progress else lambda done, total: None)
    return folder / "tiny.gguf"


def test_the_header_describes_the_model(folder: Path) -> None:
    header = read_header(convert(folder))
    assert (header.architecture, header.name, header.context, header.embedding_size) == ("bert", "tiny", 8, 2)
    assert (header.pooling, header.bos_id, header.vocabulary_size) == (1, 2, len(VOCAB))
    assert header.control_tokens == {token: at for at, token in enumerate(VOCAB[:5])}


def test_the_vocabulary_is_written_in_sentencepiece_notation(folder: Path) -> None:
    data = convert(folder).read_bytes()
    for piece in ("[MASK]", "\u2581sea", "side", "\u2581\u2028"):
        assert struct.pack("<Q", len(piece.encode())) + piece.encode() in data


def test_conversion_is_deterministic_and_progress_ends_at_the_total(folder: Path) -> None:
    progress: list[tuple[int, int]] = []
    once = convert(folder, lambda done, total: progress.append((done, total))).read_bytes()
    assert convert(folder).read_bytes() == once
    assert progress == sorted(progress)
    assert progress[-1][0] == progress[-1][1]


def test_weight_matrices_are_stored_in_half_precision_and_others_unchanged(folder: Path) -> None:
    data = convert(folder).read_bytes()
    embeddings = struct.pack("<16e", *[0 + at / 8 for at in range(16)])
    positions = struct.pack("<16f", *[1 + at / 8 for at in range(16)])
    assert data.count(embeddings) == 1
    assert data.count(positions) == 1
    assert b"blk.0.ffn_up.weight" + struct.pack("<IQQI", 2, 2, 4, 1) in data  # the fastest dimension first
    assert b"pooler" not in data


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{}"),
        ("config.json", b"nothing"),
        ("vocab.txt", b"a\nb"),
        ("vocab.txt", b"\xff"),
        ("model.safetensors", b""),
        ("model.safetensors", struct.pack("<Q", 2**60)),
        ("model.safetensors", struct.pack("<Q", 2) + b"{}"),
        ("model.safetensors", make_safetensors()[:-100]),
        ("model.safetensors", make_safetensors("BF16")),
    ],
)
def test_files_of_another_format_are_reported(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(StartupError, match="The files of tiny are not those of a sentence encoder"):
        convert(folder)
