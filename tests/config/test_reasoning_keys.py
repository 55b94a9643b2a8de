"""Keys that encrypt reasoning: how they are read from settings and files, and how invalid ones are reported."""

from base64 import b64encode, urlsafe_b64encode
from pathlib import Path

import pytest

from antiphon.config.key_settings import read_reasoning_keys
from antiphon.config.sources import load
from antiphon.errors import StartupError

ONE, OTHER = bytes(range(32)), bytes([255]) * 32
TEXT = b64encode(ONE).decode()


def test_a_key_may_use_either_base64_alphabet_with_or_without_padding() -> None:
    other = urlsafe_b64encode(OTHER).decode()
    assert read_reasoning_keys([TEXT, other, TEXT.rstrip("="), b64encode(OTHER).decode()]) == [ONE, OTHER, ONE, OTHER]
    assert read_reasoning_keys([]) == []


def test_a_key_file_has_one_key_per_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{b64encode(OTHER).decode()}\n\n  {TEXT}\n")
    assert read_reasoning_keys([f"@{file}"]) == [OTHER, ONE]


@pytest.mark.parametrize("text", ["short", TEXT[:-4], TEXT + "AAAA", "x" * 43 + "!", "ü" * 43, "@"])
def test_an_invalid_key_stops_the_start_and_is_not_shown(text: str) -> None:
    with pytest.raises(StartupError, match="--reasoning-key") as refused:
        read_reasoning_keys([text])
    assert len(text) == 1 or text not in str(refused.value)


def test_a_missing_binary_empty_or_invalid_key_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(OTHER)
    (tmp_path / "wrong").write_text(f"{TEXT}\nsecret")
    for name, message in (
        ("none", "cannot be read"),
        ("empty", "no key"),
        ("binary", "not a text"),
        ("wrong", "invalid line"),
    ):
        with pytest.raises(StartupError, match=message) as refused:
            read_reasoning_keys([f"@{tmp_path / name}"])
        assert "secret" not in str(refused.value)


@pytest.mark.shows("H1.3")
def test_the_setting_works_under_both_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load({"reasoning_key": ("a", "b")}).inference.reasoning_key == ("a", "b")
    monkeypatch.setenv("ANTIPHON_REASONING_ENCRYPTION_KEY", "c, d")
    assert load({}).inference.reasoning_key == ("c", "d")
    monkeypatch.delenv("ANTIPHON_REASONING_ENCRYPTION_KEY")
    Path("antiphon.toml").write_text('reasoning_encryption_key = "e"')
    assert load({}).inference.reasoning_key == ("e",)
    Path("antiphon.toml").write_text('reasoning_encryption_key = "e"\nreasoning_key = "f"')
    with pytest.raises(StartupError, match="twice"):
        load({})


def test_keys_are_not_in_a_repr() -> None:
    assert TEXT not in repr(load({"reasoning_key": (TEXT,)}))
