"""Engines in the settings: one spec for each, whose keys are its own."""

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


def written(text: str, **flags: Any) -> Config:
    Path("antiphon.toml").write_text(text)
    return load(flags)


def test_an_engine_is_one_spec_and_several_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Config().specs == (EngineSpec(url="llamacpp"),)
    assert Config(engine="fake").specs == load({"engine": ("fake",)}).specs == (EngineSpec(url="fake"),)
    assert [spec.url for spec in load({"engine": TWO}).specs] == [*TWO]
    monkeypatch.setenv("ANTIPHON_ENGINE", ",".join(TWO))
    assert [spec.url for spec in load({}).specs] == [*TWO]
    assert [spec.url for spec in written('engine = ["fake", "llamacpp"]', engine=("fake",)).specs] == ["fake"]


@pytest.mark.parametrize(
    ("url", "kind", "place"),
    [
        ("vllm://GPU-1:8000/team", "vllm", "gpu-1:8000"),
        ("sglang+https://host", "sglang", "host"),
        ("llamacpp-server+unix:///run/llama.sock", "llamacpp-server", "/run/llama.sock"),
        ("openai://[::1]:80", "openai", "[::1]:80"),
        ("llamacpp", "llamacpp", ""),
    ],
)
def test_a_url_says_what_it_is_and_where(url: str, kind: str, place: str) -> None:
    spec = EngineSpec(url=url)
    assert (spec.kind, spec.place, spec.runs_elsewhere) == (kind, place, ":" in url)


def test_tables_say_all_that_is_to_be_said_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_KEY", "sk-from-env")
    config = written(
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
    first, second = config.specs
    assert first == EngineSpec(
        url="vllm+https://gpu:8000", name="big", key="sk-from-env", ca=Path("ca.pem"), models=("m",), level="tokens",
        slots=4, drain=True,
    )  # fmt: skip
    assert second == EngineSpec(url="sglang://other", slots=8)
    assert config.names == {"fast": "m"}
    assert config.models == {"org/m": ModelSpec(default_output_tokens=10, max_output_tokens=20)}


def test_engines_of_a_flag_or_a_variable_come_before_those_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[[engines]]\nurl = "vllm://a"\n'
    assert [spec.url for spec in written(text).specs] == ["vllm://a"]
    assert [spec.url for spec in written(text, engine=("fake",)).specs] == ["fake"]
    monkeypatch.setenv("ANTIPHON_ENGINE", "llamacpp")
    assert [spec.url for spec in written(text).specs] == ["llamacpp"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[[engines]]\nname = "a"', "[[engines]] in antiphon.toml does not fit: Object missing required field `url`"),
        ('[[engines]]\nurl = "a"\nnmae = "b"', "[[engines]] in antiphon.toml does not fit: Object contains unknown"),
        ('[[engines]]\nurl = "a"\nslots = 0', "[[engines]] in antiphon.toml does not fit: Expected `int` >= 1, at [0]"),
        ('[[engines]]\nurl = "a"\nkey = "hush hush"', "[[engines]] in antiphon.toml does not fit: Expected `str`"),
        ('[[engines]]\nurl = "a"\nkey = "env:NO_SUCH"', "[[engines]] in antiphon.toml takes a key from NO_SUCH, which"),
        (
            'engine = "a"\n[[engines]]\nurl = "b"',
            "antiphon.toml has both `engine` and [[engines]]: one of them will do",
        ),
        ("[aliases]\nx = 3", "[aliases] in antiphon.toml does not fit: Expected `str`, got `int`"),
        ("[models.x]\nmost = 3", '[models."NAME"] in antiphon.toml does not fit: Object contains unknown field'),
    ],
)
def test_a_table_that_does_not_fit_is_a_sentence_without_any_key(text: str, sentence: str) -> None:
    with pytest.raises(StartupError) as caught:
        written(text)
    assert str(caught.value).startswith(sentence)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("engines", "keys", "given"),
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
def test_a_key_goes_to_its_engine_and_to_no_other(
    engines: tuple[str, ...], keys: str | tuple[str, ...], given: list[str | None]
) -> None:
    assert [spec.key for spec in Config(engine=engines, engine_key=keys).specs] == given


@pytest.mark.parametrize(
    ("engines", "keys", "words"),
    [
        (TWO, ("hush",), "write HOST:PORT=KEY, of a:8000, b:8000"),
        (TWO, ("c:8000=hush",), "write HOST:PORT=KEY, of a:8000, b:8000"),
        (("vllm://a:8000",), ("b:8000=hush",), "write HOST:PORT=KEY, of a:8000"),
        (("vllm://a:8000",), ("hush", "hush-hush"), "a:8000 has two keys"),
        (TWO, ("a:8000=hush", "a:8000=hush2"), "a:8000 has two keys"),
        (("vllm://a/x", "vllm://a/y"), ("a=hush",), "where several engines are"),
    ],
)
def test_a_key_that_may_be_anybodys_is_nobodys(engines: tuple[str, ...], keys: tuple[str, ...], words: str) -> None:
    with pytest.raises(StartupError, match=words) as caught:
        _ = Config(engine=engines, engine_key=keys).specs
    assert "hush" not in str(caught.value)


def test_a_key_of_a_table_and_one_of_a_flag_are_two() -> None:
    config = written(
        '[[engines]]\nurl = "vllm://a:1"\nkey = "k"\n[[engines]]\nurl = "vllm://b:1"', engine_key=("b:1=x",)
    )
    assert [spec.key for spec in config.specs] == ["k", "x"]
    with pytest.raises(StartupError, match="a:1 has two keys"):
        _ = written('[[engines]]\nurl = "vllm://a:1"\nkey = "k"', engine_key=("a:1=x",)).specs


def test_a_key_is_not_shown() -> None:
    assert "hush" not in repr(EngineSpec(url="vllm://a", key="hush"))
    assert "hush" not in repr(Config(engine="vllm://a", engine_key="hush"))


def test_files_are_for_the_engine_that_runs_here_and_names_for_all_others() -> None:
    mixed = Config(engine=("llamacpp", "vllm://a"), model=("x.gguf",))
    assert [spec.models for spec in mixed.specs] == [("x.gguf",), ()]
    assert [spec.models for spec in Config(engine=TWO, model=("m",)).specs] == [("m",), ("m",)]


@pytest.mark.parametrize("text", ['engine = ["vllm://a", "vllm://a"]', '[[engines]]\nurl="a"\nname="x"\n' * 2])
def test_an_engine_or_a_name_is_given_once(text: str) -> None:
    with pytest.raises(StartupError, match="is given twice"):
        _ = written(text).specs


def test_aliases_come_from_flags_and_from_the_file() -> None:
    config = written('[aliases]\nfast = "small"\nslow = "large"', alias=("fast=tiny", "gpt=a=b"))
    assert config.names == {"fast": "tiny", "slow": "large", "gpt": "a=b"}
    with pytest.raises(StartupError, match=r"--alias is .*; expected NAME=MODEL"):
        load({"alias": ("fast",)})
    with pytest.raises(StartupError, match="name the model"):
        _ = Config(alias=("a=b", "b=c")).names
