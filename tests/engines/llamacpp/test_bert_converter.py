"""Making a GGUF file of a sentence encoder: a tiny one, made by hand."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.engines.gguf import read_header
from antiphon.engines.llamacpp.bert_converter import convert_bert
from antiphon.errors import StartupError
from tests.engines.llamacpp.encoder_files import FILES, WORDS, safetensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def made(folder: Path, *told: Callable[[int, int], None]) -> Path:
    convert_bert(folder, "tiny", folder / "tiny.gguf", told[0] if told else lambda done, whole: None)
    return folder / "tiny.gguf"


def test_the_file_says_what_it_is(folder: Path) -> None:
    header = read_header(made(folder))
    assert (header.architecture, header.name, header.context, header.width) == ("bert", "tiny", 8, 2)
    assert (header.pooling, header.bos_id, header.vocabulary) == (1, 2, len(WORDS))
    assert header.control == {word: at for at, word in enumerate(WORDS[:5])}


def test_words_are_written_as_sentencepiece_does(folder: Path) -> None:
    data = made(folder).read_bytes()
    for piece in ("[MASK]", "\u2581sea", "side", "\u2581\u2028"):
        assert struct.pack("<Q", len(piece.encode())) + piece.encode() in data


def test_the_same_input_gives_the_same_bytes_and_progress_ends_with_all_of_it(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    once = made(folder, lambda done, whole: told.append((done, whole))).read_bytes()
    assert made(folder).read_bytes() == once
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]


def test_matrices_are_kept_in_half_the_room_and_the_rest_as_it_is(folder: Path) -> None:
    data = made(folder).read_bytes()
    words = struct.pack("<16e", *[0 + at / 8 for at in range(16)])
    positions = struct.pack("<16f", *[1 + at / 8 for at in range(16)])
    assert data.count(words) == 1
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
        ("model.safetensors", safetensors()[:-100]),
        ("model.safetensors", safetensors("BF16")),
    ],
)
def test_files_that_are_something_else_are_a_sentence(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(StartupError, match="The files of tiny are not those of a sentence encoder"):
        made(folder)
