"""Keys by flag and in a file: what a line says, and what is said of one that says nothing."""

from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.config.key_settings import GivenKey, given_keys
from antiphon.errors import StartupError


def test_flags_and_lines_are_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n\nplain-key\nacme  key-of-acme\n  # more\nacme second\n")
    assert given_keys(Config(api_key=("a", "b"), api_key_file=file)) == [
        GivenKey("flag 1", "a"),
        GivenKey("flag 2", "b"),
        GivenKey("line 3", "plain-key"),
        GivenKey("line 4", "key-of-acme", "acme"),
        GivenKey("line 6", "second", "acme"),
    ]
    assert given_keys(Config()) == []


@pytest.mark.parametrize(
    "line", ["Acme hush-hush", "a b hush-hush", "acme hüsh-hush", "a/b hush-hush", "hush\x00-hush"]
)
def test_a_line_that_does_not_fit_is_named_and_not_repeated(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"good\n{line}\n")
    with pytest.raises(StartupError, match="line 2") as refused:
        given_keys(Config(api_key_file=file))
    assert "hush" not in str(refused.value)


def test_a_file_that_is_missing_empty_or_no_text_is_said(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("# nobody\n")
    binary.write_bytes(b"\xff\xfe")
    for file, words in ((tmp_path / "none", "cannot be read"), (empty, "has no key in it"), (binary, "is not a text")):
        with pytest.raises(StartupError, match=words):
            given_keys(Config(api_key_file=file))


def test_one_key_for_two_tenants_is_refused_and_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("acme hush\nother hush\n")
    with pytest.raises(StartupError, match="for another tenant") as refused:
        given_keys(Config(api_key_file=file))
    assert "hush" not in str(refused.value)
    assert "hush" not in repr(GivenKey("flag 1", "hush"))


def test_with_a_file_of_keys_it_is_no_ones_home(tmp_path: Path) -> None:
    assert not Config(api_key_file=tmp_path / "keys").at_home
