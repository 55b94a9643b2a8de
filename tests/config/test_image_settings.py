"""Settings of image services: flags, the file of `--image-service-config`, and the secrecy of keys."""

from pathlib import Path

import pytest

from antiphon.config.image_settings import ImageServiceSpec
from antiphon.config.sources import load
from antiphon.errors import StartupError

SECRET = "s3cret-of-the-service"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    return tmp_path


def load_flags(*flags: str) -> list[ImageServiceSpec]:
    return load({"image_service": [*flags]}).images.load_specs()


def load_file(folder: Path, text: str) -> list[ImageServiceSpec]:
    (folder / "images.toml").write_text(text)
    return load({"image_service_config": "images.toml"}).images.load_specs()


def test_there_is_no_image_service_by_default() -> None:
    assert load({}).images.load_specs() == []


@pytest.mark.parametrize(
    ("flag", "kind", "url", "key"),
    [
        ("fake", "fake", "fake", None),
        ("http://gpu:8000", "openai", "http://gpu:8000", None),
        (f"https://api.example/v1={SECRET}", "openai", "https://api.example/v1", SECRET),
        (f"vllm-omni://gpu:8000=={SECRET}", "vllm-omni", "http://gpu:8000", f"={SECRET}"),
        ("sd.cpp+https://gpu/x", "sd.cpp", "https://gpu/x", None),
        ("localai+unix:///run/x", "localai", "unix:///run/x", None),
    ],
)
def test_a_flag_has_the_kind_the_url_and_the_key(flag: str, kind: str, url: str, key: str | None) -> None:
    [spec] = load_flags(flag)
    assert (spec.kind, spec.url, spec.key, spec.name) == (kind, url, key, kind)


def test_several_flags_have_different_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAW_KEY", SECRET)
    specs = load_flags("http://a", "http://b=env:DRAW_KEY")
    assert [spec.name for spec in specs] == ["openai", "openai-2"]
    assert specs[1].key == SECRET


@pytest.mark.parametrize("flag", ["ftp://host", "host:80", "sd.cpp", "other://host"])
def test_an_unknown_kind_is_a_startup_error(flag: str) -> None:
    with pytest.raises(StartupError, match="begins with http://"):
        load_flags(flag)


@pytest.mark.shows("E2.1", "H1.3")
def test_a_file_has_a_table_for_each_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAW_KEY", SECRET)
    [draw, paint] = load_file(
        folder,
        '[draw]\nurl = "http://gpu-1:8000"\nkind = "vllm-omni"\nkey = "env:DRAW_KEY"\ntimeout = 20\nslots = 2\n'
        'models = { "gpt-image-2" = "Qwen/Qwen-Image" }\ndefaults = { num_inference_steps = 20 }\n'
        '[paint]\nurl = "sglang+https://gpu-2"\n',
    )
    assert (draw.name, draw.kind, draw.key, draw.timeout, draw.slots) == ("draw", "vllm-omni", SECRET, 20, 2)
    assert draw.models == {"gpt-image-2": "Qwen/Qwen-Image"}
    assert draw.defaults == {"num_inference_steps": 20}
    assert (paint.name, paint.kind, paint.url, paint.timeout) == ("paint", "sglang", "https://gpu-2", 180)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[draw]\nkind = 'openai'", "missing required field `url`, at"),
        ("[draw]\nurl = 'http://x'\nurll = 'y'", "unknown field `urll`"),
        ("[draw]\nurl = 'http://x'\nkind = 'other'", "Invalid enum value 'other'"),
        ("[draw]\nurl = 'http://x'\ndefaults = { n = 2 }", "`defaults` cannot set n"),
        ("[draw", "is not valid TOML"),
        ("[draw]\nurl = 'http://x'\nkey = 'env:NOT_SET_HERE'", "NOT_SET_HERE, which is not set"),
    ],
)
def test_an_invalid_file_is_a_startup_error(folder: Path, text: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        load_file(folder, text)


def test_a_missing_file_is_a_startup_error() -> None:
    with pytest.raises(StartupError, match="cannot be read"):
        load({"image_service_config": "missing.toml"}).images.load_specs()


def test_a_name_is_used_once(folder: Path) -> None:
    (folder / "images.toml").write_text("[openai]\nurl = 'http://x'\n")
    config = load({"image_service_config": "images.toml", "image_service": ["http://y"]})
    with pytest.raises(StartupError, match="openai is configured twice"):
        config.images.load_specs()


def test_keys_are_not_shown() -> None:
    config = load({"image_service": [f"http://x={SECRET}"]})
    assert SECRET not in repr(config) + repr(config.images) + repr(config.images.load_specs())
    with pytest.raises(StartupError) as caught:
        load({"image_service": [f"http://x={SECRET} y"]})
    assert SECRET not in str(caught.value)
