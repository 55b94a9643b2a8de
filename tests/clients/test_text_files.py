"""Files of clients: new ones are complete, and others keep everything else, with comments.

Covers `clients/base.py`, `clients/catalog.py`, `clients/json_text.py`, `clients/yaml_text.py` and
`protocol/types/operations/models.py`.
"""

import json
import tomllib
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # the stubs are a separate package
from msgspec import structs

from antiphon.clients.base import ClientFile, ServerConnection
from antiphon.clients.catalog import CLIENTS, list_text_models
from antiphon.clients.json_text import parse_json
from antiphon.clients.text_files import edit_text, render_file
from antiphon.errors import StartupError
from antiphon.protocol.types.operations.models import ModelObject
from tests.clients.sdk_pages.client_pages import PAGES, extract_blocks

ODD = 'org/"odd"\\model {{ 1 }} é\x7f'
CODER = ModelObject(
    id="coder",
    context_length=40_000,
    max_output_tokens=4000,
    input_modalities=["text", "image"],
    output_modalities=["text"],
    tools=True,
    reasoning=True,
    reasoning_efforts=["low", "high"],
)
BARE = ModelObject(id=ODD, input_modalities=["text"], output_modalities=["text"], tools=False)
CONNECTION = ServerConnection(url="http://127.0.0.1:8000", models=[CODER, BARE])
WITH_KEY = ServerConnection(url="https://ai.example.com/x", models=[BARE], key="sk-1")

FILES = [pytest.param(file, id=file.template) for setup in CLIENTS.values() for file in setup.files]


def find_file(template: str) -> ClientFile:
    (file,) = [file for setup in CLIENTS.values() for file in setup.files if file.template == template]
    return file


def parse(file: ClientFile, text: str) -> Any:
    match file.kind:
        case "json":
            return json.loads(text)
        case "toml":
            return tomllib.loads(text)
        case "yaml":
            return yaml.safe_load(text)
        case "txt":
            return text
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize("connection", [CONNECTION, WITH_KEY], ids=["models", "key"])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.shows("I2.2")
def test_a_new_file_is_valid_and_editing_it_again_changes_nothing(
    file: ClientFile, connection: ServerConnection
) -> None:
    text = edit_text(file, connection, "")
    assert text == render_file(file, connection)
    assert parse(file, text)
    assert edit_text(file, connection, text) == text


@pytest.mark.parametrize("file", FILES)
@pytest.mark.shows("I2.2")
def test_another_connection_replaces_the_first_one(file: ClientFile) -> None:
    text = edit_text(file, CONNECTION, "")
    changed = parse(file, edit_text(file, WITH_KEY, text))
    expected = parse(file, render_file(file, WITH_KEY))
    if file.template == "aider-models.json":  # one member per model, and another program may use the first one
        expected = parse(file, text) | expected
    assert changed == expected


@pytest.mark.shows("I2.2")
def test_codex_and_opencode_get_a_catalog_with_limits_modalities_and_efforts() -> None:
    coder, bare = json.loads(render_file(find_file("codex-models.json"), CONNECTION))["models"]
    assert (coder["slug"], coder["context_window"], coder["input_modalities"]) == ("coder", 40_000, ["text", "image"])
    assert [level["effort"] for level in coder["supported_reasoning_levels"]] == ["low", "high"]
    assert (bare["slug"], bare["context_window"], bare["supported_reasoning_levels"]) == (ODD, 32_768, [])
    models = json.loads(render_file(find_file("opencode.json"), CONNECTION))["provider"]["antiphon"]["models"]
    assert models["coder"]["limit"] == {"context": 40_000, "output": 4000}
    assert models[ODD]["limit"] == {"context": 32_768, "output": 8192}
    assert (models["coder"]["tool_call"], models[ODD]["tool_call"]) == (True, False)


@pytest.mark.parametrize("file", [param for param in FILES if "programs/" in str(param.id)])
@pytest.mark.shows("I2.2", "I2.6")
def test_the_program_of_a_library_begins_its_page(file: ClientFile) -> None:
    """`make test-clients` runs the code of the pages."""
    page, language = f"{file.template[9:-4]}.md", "python" if file.name.endswith(".py") else "js"
    example = ModelObject(id="qwen3-8b", input_modalities=["text"], output_modalities=["text"])
    program = render_file(file, ServerConnection(url="http://127.0.0.1:8000", models=[example]))
    assert program.replace("'", '"').startswith(extract_blocks(page, language)[0].replace("'", '"'))


def test_every_page_of_a_client_has_its_files() -> None:
    pages = {f"clients/{page.name}" for page in PAGES.glob("*.md") if page.name != "index.md"}
    assert pages <= {setup.page for setup in CLIENTS.values()}


@pytest.mark.parametrize("name", [name for name, setup in CLIENTS.items() if setup.reads_key])
def test_the_key_is_in_no_file_of_a_client_that_reads_it_from_the_environment(name: str) -> None:
    texts = [render_file(file, WITH_KEY) for file in CLIENTS[name].list_files(WITH_KEY)]
    assert not any(WITH_KEY.key in text for text in texts)


TOML = """# mine
model = "gpt-6"  # the best
approval_policy = 'never'
text = \"\"\"
[not a table]
\"\"\"

[model_providers.antiphon] # old
name = "Old"
env_key = "OLD"

# about the project
[projects."/home/me"]
model = "other"
"""


@pytest.mark.shows("I2.3")
def test_values_of_toml_are_set_and_everything_else_stays() -> None:
    edited = edit_text(find_file("codex.toml"), CONNECTION, TOML)
    assert "model = \"coder\"  # the best\napproval_policy = 'never'\n" in edited
    assert '\n# about the project\n[projects."/home/me"]\nmodel = "other"\n' in edited
    content = tomllib.loads(edited)
    assert content["text"] == "[not a table]\n"
    assert content["model_providers"] == {
        "antiphon": {"name": "Antiphon", "base_url": "http://127.0.0.1:8000/v1", "wire_api": "responses"}
    }


@pytest.mark.parametrize(
    "text",
    [
        "model_providers = { antiphon = { name = 'x' } }\n",
        'model = """\nx"""\n',
        "model_providers.antiphon.name = 'x'\n",
        "a = [\n",
        "[[model_providers]]\n",
    ],
)
@pytest.mark.shows("I2.3")
def test_toml_in_an_unexpected_form_is_refused(text: str) -> None:
    with pytest.raises(StartupError, match=r"cannot be edited: .*--print shows how"):
        edit_text(find_file("codex.toml"), CONNECTION, text)


JSONC = """// Zed settings
{
\t"theme": "One", // dark
\t"language_models": { /* nothing yet */ },
\t"agent": {"enabled": true, "default_model": {"provider": "x", "model": "y"}},
}
"""


@pytest.mark.shows("I2.3")
def test_values_of_json_with_comments_are_set_and_everything_else_stays() -> None:
    edited = edit_text(find_file("zed.json"), CONNECTION, JSONC)
    for line in ("// Zed settings\n{", '\t"theme": "One", // dark\n', "/* nothing yet */", '{"enabled": true,'):
        assert line in edited
    content = parse_json(edited).value
    assert content["theme"] == "One"
    assert content["agent"] == {"enabled": True, "default_model": {"provider": "Antiphon", "model": "coder"}}
    (provider,) = content["language_models"]["openai_compatible"].values()
    assert provider["available_models"][1]["name"] == ODD


@pytest.mark.parametrize(
    "text", ["{}", "{ }\n", '{"a": [1, {"b": null}]}', "{ // x\n}", '{"a": "//no", /**/ }', "{\n}"]
)
@pytest.mark.shows("I2.3")
def test_members_are_added_to_any_object(text: str) -> None:
    before, content = parse_json(text).value, parse_json(edit_text(find_file("claude.json"), CONNECTION, text)).value
    assert content == {**before, "env": content["env"]}
    assert content["env"]["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "40000"


@pytest.mark.shows("I2.3")
def test_an_element_of_a_list_is_replaced_by_its_name() -> None:
    text = '[\n  {"name": "Mine", "models": []}, // first\n  {"name": "Antiphon"}\n]\n'
    edited = edit_text(find_file("vscode.json"), CONNECTION, text)
    assert '{"name": "Mine", "models": []}, // first\n' in edited
    assert [group["name"] for group in parse_json(edited).value] == ["Mine", "Antiphon"]
    assert [
        group["name"] for group in parse_json(edit_text(find_file("vscode.json"), CONNECTION, "[1, {}]\n")).value[:1]
    ]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"env": 1}', '{"a" 1}', '{"a": 1 "b": 2}', "{} x", "{a: 1}", "\\", "[" * 9999]
)
@pytest.mark.shows("I2.3")
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(StartupError, match=r"settings\.json cannot be edited"):
        edit_text(find_file("claude.json"), CONNECTION, text)


@pytest.mark.shows("I2.3")
def test_line_ends_and_the_byte_order_mark_are_preserved() -> None:
    edited = edit_text(find_file("claude.json"), CONNECTION, '\ufeff{\r\n  "a": 1\r\n}\r\n')
    assert edited.startswith('\ufeff{\r\n  "env": {\r\n')
    assert "\n" not in edited.replace("\r\n", "")


ENDPOINTS = [
    "version: 1.0\n",
    "version: 1.0\nendpoints:\n  agents:\n    disableBuilder: true\n",
    "endpoints:\n  custom:\n  - name: Other\n    apiKey: x\ncache: true\n",
    "# mine\nendpoints: # all\n    custom:\n        # 1\n        - name: Other\n          a:\n            custom: 1\n",
    "endpoints:\n  custom:\n  assistants:\n    custom: 1\n",
    "endpoints:\nversion: 1",
]


@pytest.mark.parametrize("text", ENDPOINTS)
@pytest.mark.shows("I2.3")
def test_elements_are_added_to_a_list_in_yaml(text: str) -> None:
    file = find_file("librechat.yaml")
    edited = edit_text(file, CONNECTION, text)
    before, after = yaml.safe_load(text), yaml.safe_load(edited)
    added, *others = after["endpoints"]["custom"]
    assert added["models"]["default"] == ["coder", ODD]
    endpoints = before.get("endpoints") or {}
    assert others == (endpoints.get("custom") or [])
    assert {**before, "endpoints": {**endpoints, "custom": [added, *others]}} == after
    assert [line for line in text.splitlines() if line not in edited.splitlines()] == []
    assert edit_text(file, CONNECTION, edited) == edited


@pytest.mark.parametrize("text", ["endpoints: {}\n", "endpoints:\n  custom: []\n", "endpoints:\n  custom:\n    a: 1\n"])
@pytest.mark.shows("I2.3")
def test_yaml_in_flow_style_is_refused(text: str) -> None:
    with pytest.raises(StartupError, match="it is not in block style at"):
        edit_text(find_file("librechat.yaml"), CONNECTION, text)


@pytest.mark.shows("I2.3")
def test_models_of_llm_are_appended_to_a_list_only() -> None:
    file = find_file("llm.yaml")
    edited = edit_text(file, CONNECTION, "# mine\n- model_id: mine\n  model_name: x")
    assert edited.startswith("# mine\n- model_id: mine\n  model_name: x\n")
    assert [model["model_id"] for model in yaml.safe_load(edited)] == ["mine", "antiphon/coder", f"antiphon/{ODD}"]
    with pytest.raises(StartupError, match="not in block style"):
        edit_text(file, CONNECTION, "models: []\n")


@pytest.mark.shows("I2.3")
def test_variables_are_replaced_in_their_lines() -> None:
    edited = edit_text(find_file("aider.env"), CONNECTION, "# mine\nexport OPENAI_API_KEY=old\nOTHER=1")
    assert edited.startswith("# mine\nexport OPENAI_API_KEY=unused\nOTHER=1\n")
    assert "AIDER_MODEL=openai/coder\n" in edited
    hostile = ServerConnection(url="http://x", models=[structs.replace(BARE, id="$(touch x)`y`'\n")])
    assert "AIDER_MODEL='openai/$(touch x)`y`'\"'\"''\n" in render_file(find_file("aider.env"), hostile)


def test_models_that_generate_no_text_are_left_out() -> None:
    whisper = ModelObject(id="whisper", input_modalities=["audio"], output_modalities=["text"])
    silent = ModelObject(id="silent")
    assert [model.id for model in list_text_models([whisper, CODER, silent, BARE], ODD)] == [ODD, "coder"]
