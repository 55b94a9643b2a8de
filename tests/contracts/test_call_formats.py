"""Runs the contract suite of tool-call formats against every registered format, with recorded outputs of models."""

from functools import cache

import pytest

from antiphon.core.prompt import Json
from antiphon.errors import StartupError
from antiphon.parsers.calls.registry import FORMATS, load_format
from antiphon.testing.call_format_tests import SEEDS, Corpus
from antiphon.testing.contracts import CallFormatContract
from tests.golden.calls.recordings import build_schemas, load_recordings


@cache
def load_corpus(form: str) -> Corpus:
    """Return the recorded outputs, and the schemas of all tools offered in the recordings."""
    recordings = load_recordings(form)
    tools: dict[str, Json] = {}
    for each in recordings:
        tools |= build_schemas(each)
    return Corpus(format=form, outputs=[each.output for each in recordings], tools=tools)


@pytest.mark.parametrize("form", FORMATS)
def test_the_error_for_an_unknown_format_lists_the_registered_ones(form: str) -> None:
    with pytest.raises(StartupError, match=form):
        load_format(f"no-{form}")


@pytest.mark.seeds(SEEDS)
@pytest.mark.parametrize("form", FORMATS)
class TestCallFormat(CallFormatContract):
    @pytest.fixture
    def corpus(self, form: str) -> Corpus:
        return load_corpus(form)

    @pytest.fixture
    def seed(self) -> None:
        """The marker above gives the seeds of this run instead of those of the contract."""
