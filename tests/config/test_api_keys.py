"""API keys from flags and from a key file: how lines are parsed, and how invalid lines and files are reported.

Covers `config/key_settings.py`.
"""

from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.config.key_settings import ConfiguredKey, load_configured_keys
from antiphon.errors import StartupError


def test_keys_are_read_from_flags_and_from_file_lines(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n\nplain-key\nacme  key-of-acme\n  # more\nacme second\n")
    assert load_configured_keys(Config.from_settings(api_key=("a", "b"), api_key_file=file)) == [
        ConfiguredKey("flag 1", "a"),
        ConfiguredKey("flag 2", "b"),
        ConfiguredKey("line 3", "plain-key"),
        ConfiguredKey("line 4", "key-of-acme", "acme"),
        ConfiguredKey("line 6", "second", "acme"),
    ]
    assert load_configured_keys(Config()) == []


@pytest.mark.parametrize(
    "line", ["Acme hush-hush", "a b hush-hush", "acme hüsh-hush", "a/b hush-hush", "hush\x00-hush"]
)
def test_an_invalid_line_is_reported_by_number_without_its_text(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"good\n{line}\n")
    with pytest.raises(StartupError, match="line 2") as refused:
        load_configured_keys(Config.from_settings(api_key_file=file))
    assert "hush" not in str(refused.value)


def test_a_missing_empty_or_binary_key_file_is_reported(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("# nobody\n")
    binary.write_bytes(b"\xff\xfe")
    for file, message in ((tmp_path / "none", "cannot be read"), (empty, "contains no key"), (binary, "is not a text")):
        with pytest.raises(StartupError, match=message):
            load_configured_keys(Config.from_settings(api_key_file=file))


def test_one_key_for_two_tenants_is_rejected_without_showing_it(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("acme hush\nother hush\n")
    with pytest.raises(StartupError, match="for another tenant") as refused:
        load_configured_keys(Config.from_settings(api_key_file=file))
    assert "hush" not in str(refused.value)
    assert "hush" not in repr(ConfiguredKey("flag 1", "hush"))


def test_a_key_file_disallows_loopback_urls(tmp_path: Path) -> None:
    assert not Config.from_settings(api_key_file=tmp_path / "keys").server.allow_loopback_urls
