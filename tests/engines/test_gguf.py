"""What a GGUF file says about itself, and that no file, however broken, does more than say a sentence."""

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.gguf import Header, read_header
from antiphon.errors import StartupError
from tests.engines.gguf_files import PAIRS, TOKENS, gguf
from tests.support.cpu import cpu_time


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "tiny.gguf"


def read(file: Path, content: bytes) -> Header:
    file.write_bytes(content)
    return read_header(file)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.shows("C.6")
def test_a_header_tells_what_rendering_and_loading_need(file: Path, version: int) -> None:
    assert read(file, gguf(version=version)) == Header(
        architecture="llama",
        name="Tiny",
        context=2048,
        template="{{ messages }}",
        bos="<s>",
        bos_id=1,
        eos="</s>",
        control={"<unk>": 0, "<s>": 1, "</s>": 2, "<|im_start|>": 3},
        marks={"<tool_call>": 4},
        vocabulary=len(TOKENS),
        longest=len("<|im_start|>"),
    )


def test_what_is_missing_or_of_another_type_is_left_open(file: Path) -> None:
    header = read(file, gguf({"general.architecture": "x", "tokenizer.chat_template": 3, "x.context_length": "many"}))
    assert (header.name, header.context, header.template) == ("", None, None)
    assert (header.bos, header.bos_id, header.eos, header.control) == ("", None, "", {})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not a usable GGUF file"),
        (b"<html>404</html>", "does not begin with GGUF"),
        (b"GGU", "ends too early"),
        (gguf(version=1), "version 1 is not known"),
        (gguf(version=0x03000000), "version 50331648 is not known"),
        (gguf({"general.name": "nobody"}), "names no architecture"),
        (gguf()[:400], "ends too early"),
        (gguf()[:-128], "ends too early, as a download that was cut short"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "claims to have 9223372036854775808 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), "claims to have 1099511627776 settings"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "bytes in one text"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 8, 40), "ends too early"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 9, 1), "array of an unknown type"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"a", 77), "unknown type"),
    ],
)
def test_a_broken_file_is_one_sentence(file: Path, content: bytes, sentence: str) -> None:
    with pytest.raises(StartupError, match=sentence) as caught:
        read(file, content)
    assert str(file) in str(caught.value)


def test_a_missing_file_and_a_folder_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"There is no model file .*/none\.gguf\."):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(StartupError, match="is not a usable GGUF file: Is a directory"):
        read_header(tmp_path)


@given(at=st.integers(0, 500), garbage=st.binary(min_size=1, max_size=12), length=st.integers(0, 2000))
def test_any_damage_gives_a_header_or_a_sentence(file: Path, at: int, garbage: bytes, length: int) -> None:
    content = gguf()
    with suppress(StartupError):
        read(file, (content[:at] + garbage + content[at + len(garbage) :])[:length])


def test_a_quarter_of_a_million_tokens_are_read_in_no_time(file: Path) -> None:
    tokens = [f"token {number}" for number in range(250_000)]
    file.write_bytes(gguf(PAIRS | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * len(tokens)}))
    with cpu_time() as spent:
        assert read_header(file).vocabulary == len(tokens)
    assert spent.seconds < 1.0  # a tenth of it on a quiet machine
