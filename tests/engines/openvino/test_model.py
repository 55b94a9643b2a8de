"""The header of a folder in OpenVINO's format, and models that cannot be served, without OpenVINO."""

import json
from pathlib import Path

import pytest

from antiphon.engines.embedded.model_files import parse_sources
from antiphon.engines.gguf import CLS, LAST, MEAN, RANK
from antiphon.engines.openvino import engine
from antiphon.engines.openvino.engine import OpenVino, OpenVinoSettings
from antiphon.engines.openvino.model import read_folder_header
from antiphon.engines.openvino.wire import list_end_tokens
from antiphon.errors import StartupError

pytestmark = pytest.mark.anyio


def write_folder(folder: Path, **files: object) -> Path:
    (folder / "openvino_model.xml").touch()
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.shows("C.29")
def test_a_folder_has_the_header_of_its_json_files(tmp_path: Path) -> None:
    added = {"5": {"content": "<|im_end|>", "special": True}, "7": {"content": "<think>", "special": False}}
    folder = write_folder(
        tmp_path,
        config={"model_type": "qwen2", "max_position_embeddings": 4096, "vocab_size": 9},
        tokenizer_config={
            "added_tokens_decoder": added,
            "eos_token": {"content": "<|im_end|>"},
            "bos_token": None,
            "chat_template": "old",
        },
    )
    header = read_folder_header(folder)
    assert (header.architecture, header.context, header.vocabulary_size) == ("qwen2", 4096, 9)
    assert (header.bos, header.bos_id, header.eos, header.template) == ("", None, "<|im_end|>", "old")
    assert header.control_tokens == {"<|im_end|>": 5}
    assert list_end_tokens(header) == [5]
    (folder / "chat_template.jinja").write_text("new")
    assert read_folder_header(folder).template == "new"


def test_special_tokens_may_be_in_the_tokenizer_file(tmp_path: Path) -> None:
    tokens = [{"id": 3, "content": "</s>", "special": True}]
    tokenizer = {"eos_token": "</s>"}
    folder = write_folder(
        tmp_path, config={"vocab_size": 9}, tokenizer_config=tokenizer, tokenizer={"added_tokens": tokens}
    )
    assert list_end_tokens(read_folder_header(folder)) == [3]


@pytest.mark.shows("C.71")
@pytest.mark.parametrize(
    ("architecture", "modes", "pooling"),
    [
        ("LlamaForCausalLM", None, None),
        ("GPT2LMHeadModel", None, None),
        ("BertModel", None, MEAN),
        ("NomicBertForMaskedLM", None, MEAN),
        ("BertModel", {"pooling_mode_cls_token": True}, CLS),
        ("Qwen3ForCausalLM", {"pooling_mode_lasttoken": True}, LAST),
        ("XLMRobertaForSequenceClassification", None, RANK),
    ],
)
def test_the_files_of_a_folder_tell_what_its_model_does(
    tmp_path: Path, architecture: str, modes: dict[str, bool] | None, pooling: int | None
) -> None:
    config = {"vocab_size": 9, "architectures": [architecture], "max_position_embeddings": 514}
    folder = write_folder(tmp_path, config=config, tokenizer_config={"model_max_length": 512})
    if modes is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    header = read_folder_header(folder)
    assert header.pooling == pooling
    assert header.context == (514 if pooling is None else 512)


def test_a_folder_that_is_no_model_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"no openvino_model\.xml"):
        read_folder_header(tmp_path)
    write_folder(tmp_path)
    with pytest.raises(StartupError, match="no vocab_size"):
        read_folder_header(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(StartupError, match=r"config\.json cannot be read"):
        read_folder_header(tmp_path)


@pytest.mark.shows("C.29")
async def test_without_the_package_the_engine_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PACKAGE", "no_such_package")
    with pytest.raises(StartupError, match=r"pip install 'antiphon\[openvino\]'"):
        await OpenVino().open()


def test_a_draft_model_and_prompt_lookup_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="exclude each other"):
        OpenVino(OpenVinoSettings(draft_model=tmp_path, prompt_lookup=True))
    with pytest.raises(StartupError, match=r"no openvino_model\.xml"):
        OpenVino(OpenVinoSettings(draft_model=tmp_path))


def test_the_id_of_a_folder_is_its_whole_name(tmp_path: Path) -> None:
    folder = tmp_path / "qwen2.5-1.5b"
    folder.mkdir()
    assert [source.id for source in parse_sources((str(folder),))] == ["qwen2.5-1.5b"]
