"""The GGUF reader: the header fields that it returns, and that every broken file raises a StartupError."""

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import Sampling
from antiphon.engines.gguf import GgufHeader, read_content, read_header
from antiphon.errors import StartupError
from tests.engines.gguf_files import METADATA, TOKENS, make_gguf
from tests.support.cpu import cpu_timer


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "tiny.gguf"


def write_and_read(file: Path, content: bytes) -> GgufHeader:
    file.write_bytes(content)
    return read_header(file)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.shows("C.6")
def test_the_header_has_the_fields_needed_for_rendering_and_loading(file: Path, version: int) -> None:
    assert write_and_read(file, make_gguf(version=version)) == GgufHeader(
        architecture="llama",
        name="Tiny",
        context=2048,
        template="{{ messages }}",
        bos="<s>",
        bos_id=1,
        eos="</s>",
        control_tokens={"<unk>": 0, "<s>": 1, "</s>": 2, "<|im_start|>": 3},
        markup_tokens={"<tool_call>": 4},
        vocabulary_size=len(TOKENS),
        max_token_bytes=len("<|im_start|>"),
        tensor_kinds={"token_embd.weight": 0},
    )


@pytest.mark.shows("C.60")
def test_recommended_sampling_values_are_read(file: Path) -> None:
    keys = {"temp": 0.7, "top_p": 0.95, "top_k": 20, "min_p": 0.01, "penalty_repeat": 1.05}
    metadata = {**METADATA, **{f"general.sampling.{key}": value for key, value in keys.items()}}
    expected = Sampling(temperature=0.7, top_p=0.95, top_k=20, min_p=0.01, repetition_penalty=1.05)
    assert write_and_read(file, make_gguf(metadata)).sampling == expected
    wrong = {"temp": 9.5, "top_p": float("nan"), "top_k": 0, "min_p": "low", "penalty_repeat": True}
    metadata = {**METADATA, **{f"general.sampling.{key}": value for key, value in wrong.items()}}
    assert write_and_read(file, make_gguf(metadata)).sampling == Sampling()


def test_the_content_has_the_vocabulary_and_the_places_of_the_tensors(file: Path) -> None:
    file.write_bytes(make_gguf())
    content = read_content(file)
    assert (content.tokens, content.settings["llama.context_length"]) == (TOKENS, 2048)
    [(name, tensor)] = content.tensors.items()
    assert (name, tensor.kind, tensor.shape) == ("token_embd.weight", 0, (32,))
    assert tensor.offset + 128 == file.stat().st_size


def test_missing_or_mistyped_metadata_is_left_unset(file: Path) -> None:
    header = write_and_read(
        file, make_gguf({"general.architecture": "x", "tokenizer.chat_template": 3, "x.context_length": "many"})
    )
    assert (header.name, header.context, header.template) == ("", None, None)
    assert (header.bos, header.bos_id, header.eos, header.control_tokens) == ("", None, "", {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a usable GGUF file"),
        (b"<html>404</html>", "does not begin with GGUF"),
        (b"GGU", "ends too early"),
        (make_gguf(version=1), "version 1 is not supported"),
        (make_gguf(version=0x03000000), "version 50331648 is not supported"),
        (make_gguf({"general.name": "nobody"}), "names no architecture"),
        (make_gguf()[:400], "ends too early"),
        (make_gguf()[:-128], "ends too early; the download may be incomplete"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "claims to have 9223372036854775808 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), "claims to have 1099511627776 settings"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "bytes in one text"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 8, 40), "ends too early"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 9, 1), "array of an unknown type"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"a", 77), "unknown type"),
    ],
)
def test_a_broken_file_raises_a_startup_error_that_names_it(file: Path, content: bytes, message: str) -> None:
    with pytest.raises(StartupError, match=message) as caught:
        write_and_read(file, content)
    assert str(file) in str(caught.value)


def test_a_missing_file_and_a_directory_raise_startup_errors(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"There is no model file .*/none\.gguf\."):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(StartupError, match="is not a usable GGUF file: Is a directory"):
        read_header(tmp_path)


@given(at=st.integers(0, 500), garbage=st.binary(min_size=1, max_size=12), length=st.integers(0, 2000))
def test_a_damaged_file_yields_a_header_or_a_startup_error(file: Path, at: int, garbage: bytes, length: int) -> None:
    content = make_gguf()
    with suppress(StartupError):
        write_and_read(file, (content[:at] + garbage + content[at + len(garbage) :])[:length])


def test_a_vocabulary_of_250_000_tokens_is_read_within_a_second(file: Path) -> None:
    tokens = [f"token {number}" for number in range(250_000)]
    file.write_bytes(
        make_gguf(METADATA | {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * len(tokens)})
    )
    with cpu_timer() as spent:
        assert read_header(file).vocabulary_size == len(tokens)
    assert spent.seconds < 1.0  # takes about 0.1 s on an idle machine
