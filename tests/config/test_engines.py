"""Engine settings: one spec for each engine, with the keys, models and aliases that belong to it."""

from pathlib import Path
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.config.engines import EngineSpec, ModelSpec
from antiphon.config.sources import load
from antiphon.errors import StartupError

TWO = ("vllm://a:8000", "vllm://b:8000")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    return tmp_path


def load_config(text: str, **flags: Any) -> Config:
    Path("antiphon.toml").write_text(text)
    return load(flags)


def test_each_configured_engine_becomes_one_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Config().inference.specs == (EngineSpec(url="llamacpp"),)
    assert (
        Config.from_settings(engine="fake").inference.specs
        == load({"engine": ("fake",)}).inference.specs
        == (EngineSpec(url="fake"),)
    )
    assert [spec.url for spec in load({"engine": TWO}).inference.specs] == [*TWO]
    monkeypatch.setenv("ANTIPHON_ENGINE", ",".join(TWO))
    assert [spec.url for spec in load({}).inference.specs] == [*TWO]
    assert [spec.url for spec in load_config('engine = ["fake", "llamacpp"]', engine=("fake",)).inference.specs] == [
        "fake"
    ]


@pytest.mark.parametrize(
    ("url", "kind", "address"),
    [
        ("vllm://GPU-1:8000/team", "vllm", "gpu-1:8000"),
        ("sglang+https://host", "sglang", "host"),
        ("llamacpp-server+unix:///run/llama.sock", "llamacpp-server", "/run/llama.sock"),
        ("openai://[::1]:80", "openai", "[::1]:80"),
        ("llamacpp", "llamacpp", ""),
        ("openvino:/models/a.gguf", "openvino", ""),
    ],
)
def test_an_engine_url_contains_its_kind_and_address(url: str, kind: str, address: str) -> None:
    spec = EngineSpec(url=url)
    assert (spec.kind, spec.address, spec.is_remote) == (kind, address, "://" in url)


def test_the_url_of_an_embedded_engine_may_have_its_model() -> None:
    config = load_config("", engine=("openvino:a.gguf", "llamacpp"), model=("b.gguf",))
    assert [spec.models for spec in config.inference.specs] == [("a.gguf",), ("b.gguf",)]


def test_tables_set_every_option_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_KEY", "sk-from-env")
    config = load_config(
        """
        engine_slots = 8
        [[engines]]
        url = "vllm+https://gpu:8000"
        name = "big"
        key = "env:GPU_KEY"
        ca = "ca.pem"
        models = ["m"]
        level = "tokens"
        slots = 4
        drain = true
        [[engines]]
        url = "sglang://other"
        [aliases]
        fast = "m"
        [models."org/m"]
        default_output_tokens = 10
        max_output_tokens = 20
        """
    )
    first, second = config.inference.specs
    assert first == EngineSpec(
        url="vllm+https://gpu:8000", name="big", key="sk-from-env", ca=Path("ca.pem"), models=("m",), level="tokens",
        slots=4, drain=True,
    )  # fmt: skip
    assert second == EngineSpec(url="sglang://other", slots=8)
    assert config.inference.names == {"fast": "m"}
    assert config.inference.models == {"org/m": ModelSpec(default_output_tokens=10, max_output_tokens=20)}


def test_engines_from_a_flag_or_a_variable_replace_those_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[[engines]]\nurl = "vllm://a"\n'
    assert [spec.url for spec in load_config(text).inference.specs] == ["vllm://a"]
    assert [spec.url for spec in load_config(text, engine=("fake",)).inference.specs] == ["fake"]
    monkeypatch.setenv("ANTIPHON_ENGINE", "llamacpp")
    assert [spec.url for spec in load_config(text).inference.specs] == ["llamacpp"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[[engines]]\nname = "a"', "[[engines]] in antiphon.toml is invalid: Object missing required field `url`"),
        ('[[engines]]\nurl = "a"\nnmae = "b"', "[[engines]] in antiphon.toml is invalid: Object contains unknown"),
        ('[[engines]]\nurl = "a"\nslots = 0', "[[engines]] in antiphon.toml is invalid: Expected `int` >= 1, at [0]"),
        ('[[engines]]\nurl = "a"\nkey = "hush hush"', "[[engines]] in antiphon.toml is invalid: Expected `str`"),
        ('[[engines]]\nurl = "a"\nkey = "env:NO_SUCH"', "[[engines]] in antiphon.toml reads a key from NO_SUCH, which"),
        (
            'engine = "a"\n[[engines]]\nurl = "b"',
            "antiphon.toml has both `engine` and [[engines]]: remove one of them",
        ),
        ("[aliases]\nx = 3", "[aliases] in antiphon.toml is invalid: Expected `str`, got `int`"),
        ("[models.x]\nmost = 3", '[models."NAME"] in antiphon.toml is invalid: Object contains unknown field'),
    ],
)
def test_an_invalid_table_is_reported_without_any_key(text: str, sentence: str) -> None:
    with pytest.raises(StartupError) as caught:
        load_config(text)
    assert str(caught.value).startswith(sentence)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("engines", "keys", "expected"),
    [
        (("vllm://a:8000",), "k==", ["k=="]),
        (("vllm://a:8000",), ("a:8000=k",), ["k"]),
        (("vllm://A:8000/x",), ("a:8000=k=",), ["k="]),
        (TWO, ("a:8000=one", "B:8000=two"), ["one", "two"]),
        (TWO, ("b:8000=two",), [None, "two"]),
        (("llamacpp", "vllm://a"), ("k",), [None, "k"]),
        (("llamacpp",), ("k",), [None]),
        (("vllm+unix:///run/v.sock", "fake"), ("/run/v.sock=k",), ["k", None]),
    ],
)
def test_a_key_is_assigned_only_to_its_engine(
    engines: tuple[str, ...], keys: str | tuple[str, ...], expected: list[str | None]
) -> None:
    assert [spec.key for spec in Config.from_settings(engine=engines, engine_key=keys).inference.specs] == expected


@pytest.mark.parametrize(
    ("engines", "keys", "message"),
    [
        (TWO, ("hush",), "write HOST:PORT=KEY with one of a:8000, b:8000"),
        (TWO, ("c:8000=hush",), "write HOST:PORT=KEY with one of a:8000, b:8000"),
        (("vllm://a:8000",), ("b:8000=hush",), "write HOST:PORT=KEY with one of a:8000"),
        (("vllm://a:8000",), ("hush", "hush-hush"), "a:8000 has two keys"),
        (TWO, ("a:8000=hush", "a:8000=hush2"), "a:8000 has two keys"),
        (("vllm://a/x", "vllm://a/y"), ("a=hush",), "which several engines use"),
    ],
)
def test_an_ambiguous_or_unassigned_key_is_rejected(
    engines: tuple[str, ...], keys: tuple[str, ...], message: str
) -> None:
    with pytest.raises(StartupError, match=message) as caught:
        _ = Config.from_settings(engine=engines, engine_key=keys).inference.specs
    assert "hush" not in str(caught.value)


def test_a_table_key_and_a_flag_key_for_one_engine_conflict() -> None:
    config = load_config(
        '[[engines]]\nurl = "vllm://a:1"\nkey = "k"\n[[engines]]\nurl = "vllm://b:1"', engine_key=("b:1=x",)
    )
    assert [spec.key for spec in config.inference.specs] == ["k", "x"]
    with pytest.raises(StartupError, match="a:1 has two keys"):
        _ = load_config('[[engines]]\nurl = "vllm://a:1"\nkey = "k"', engine_key=("a:1=x",)).inference.specs


def test_a_key_is_not_in_a_repr() -> None:
    assert "hush" not in repr(EngineSpec(url="vllm://a", key="hush"))
    assert "hush" not in repr(Config.from_settings(engine="vllm://a", engine_key="hush"))


def test_model_files_go_to_the_local_engine_and_model_names_to_remote_engines() -> None:
    mixed = Config.from_settings(engine=("llamacpp", "vllm://a"), model=("x.gguf",))
    assert [spec.models for spec in mixed.inference.specs] == [("x.gguf",), ()]
    assert [spec.models for spec in Config.from_settings(engine=TWO, model=("m",)).inference.specs] == [("m",), ("m",)]


@pytest.mark.parametrize("text", ['engine = ["vllm://a", "vllm://a"]', '[[engines]]\nurl="a"\nname="x"\n' * 2])
def test_a_duplicate_engine_or_name_is_rejected(text: str) -> None:
    with pytest.raises(StartupError, match="is configured twice"):
        _ = load_config(text).inference.specs


def test_aliases_come_from_flags_and_from_the_file() -> None:
    config = load_config('[aliases]\nfast = "small"\nslow = "large"', alias=("fast=tiny", "gpt=a=b"))
    assert config.inference.names == {"fast": "tiny", "slow": "large", "gpt": "a=b"}
    with pytest.raises(StartupError, match=r"--alias is .*; expected NAME=MODEL"):
        load({"alias": ("fast",)})
    with pytest.raises(StartupError, match="name of the model"):
        _ = Config.from_settings(alias=("a=b", "b=c")).inference.names
