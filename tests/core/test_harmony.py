"""The vocabulary of gpt-oss: there without a network, never a control token out of text, and linear in time."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.harmony import END_OF_TEXT, FIRST_CONTROL, NAMES, Vocabulary, vocabulary
from antiphon.errors import StartupError
from tests.support.cpu import cpu_time


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=2000))
def test_text_comes_back_as_it_was(text: str) -> None:
    known = vocabulary()
    words = [known.word(token) for token in known.tokens(text)]
    assert b"".join([word.encode() if isinstance(word, str) else word for word in words]).decode() == text


@pytest.mark.parametrize("name", [*NAMES.values(), "<|endoftext|>", "<|reserved_200000|>"])
def test_the_name_of_a_control_token_is_text(name: str) -> None:
    assert all(token < FIRST_CONTROL for token in vocabulary().tokens(f"a{name} {name}b" * 50))


def test_a_control_token_says_nothing_and_a_number_that_is_no_token_neither() -> None:
    assert {vocabulary().word(token) for token in (*NAMES, END_OF_TEXT, FIRST_CONTROL, 201_087, 10**9, 2**80, -1)} == {
        ""
    }


def test_half_a_surrogate_pair_is_shown_as_unknown() -> None:
    known = vocabulary()
    assert "".join([str(known.word(token)) for token in known.tokens("a\ud800b")]) == "a\ufffdb"


@pytest.mark.parametrize("run", ["a", "ab", "=", " ", "\n", "中", "🏻", "a\u0301", "1", "Ab"])
def test_long_runs_take_linear_time(run: str) -> None:
    with cpu_time() as spent:
        assert vocabulary().tokens(run * 20_000)
    assert spent.seconds < 3  # the library alone takes up to a minute


def test_prose_has_the_tokens_that_the_library_gives_it() -> None:
    text = "The quick brown fox jumps over the lazy dog, 42 times.\n" * 2000
    import openai_harmony  # type: ignore[import-untyped]

    known = Vocabulary(openai_harmony)
    whole = openai_harmony.load_harmony_encoding("HarmonyGptOss").encode(text)
    assert known.tokens(text) == whole


def test_without_the_package_a_person_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai_harmony", None)
    with pytest.raises(StartupError, match=r"pip install 'antiphon\[harmony\]'"):
        vocabulary.__wrapped__()
