"""Which engine embeds, without OpenVINO: the child process is not started."""

import platform
from pathlib import Path

import pytest

from antiphon.engines.embedded.bert_converter import convert_bert
from antiphon.engines.embedded.model_files import ModelSource
from antiphon.engines.gguf import read_header
from antiphon.engines.llamacpp import engine
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.engines.openvino.launch import can_encode
from tests.engines.gguf_files import METADATA, make_gguf
from tests.engines.llamacpp.encoder_files import FILES


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    convert_bert(tmp_path, "tiny", tmp_path / "tiny.gguf", lambda done, total: None)
    return tmp_path / "tiny.gguf"


@pytest.mark.shows("C.70")
@pytest.mark.parametrize(
    ("machine", "package", "settings", "chosen"),
    [
        ("x86_64", "msgspec", {}, "OpenVINO"),  # any package that is installed
        ("x86_64", "no_such_package", {}, "llama.cpp"),
        ("aarch64", "msgspec", {}, "llama.cpp"),
        ("x86_64", "msgspec", {"gpu_layers": 4}, "llama.cpp"),
        ("x86_64", "msgspec", {"gpu_layers": 0}, "OpenVINO"),
        ("x86_64", "msgspec", {"llamacpp_embeddings": True}, "llama.cpp"),
    ],
)
def test_openvino_embeds_where_it_is_installed_and_the_log_says_so(
    encoder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    machine: str,
    package: str,
    settings: dict[str, int],
    chosen: str,
) -> None:
    monkeypatch.setattr(engine, "PACKAGE", package)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with caplog.at_level("INFO"):
        LlamaCpp(LlamaCppSettings(**settings)).create_model(ModelSource("tiny", encoder), encoder)  # type: ignore[arg-type]  # parameters of the test
    assert caplog.messages == [f"tiny embeds with {chosen}"]


def test_only_bert_models_in_floating_point_numbers_are_computed_by_openvino(encoder: Path, tmp_path: Path) -> None:
    content = encoder.read_bytes()
    header = read_header(encoder)
    assert can_encode(header)
    name = b"blk.0.attn_q.weight"
    position = content.index(name) + len(name) + 4 + 2 * 8
    quantised = content[:position] + b"\x08" + content[position + 1 :]
    sentence_piece = content.replace(
        b"tokenizer.ggml.model\x08\0\0\0\x04\0\0\0\0\0\0\0bert", b"tokenizer.ggml.model\x08\0\0\0\x04\0\0\0\0\0\0\0t5xx"
    )
    fused = content.replace(b"blk.0.attn_q.", b"blk.0.attn_x.")
    for other in (quantised, sentence_piece, fused, make_gguf(METADATA)):
        assert other != content
        (tmp_path / "other.gguf").write_bytes(other)
        assert not can_encode(read_header(tmp_path / "other.gguf"))
