"""Every recorded and every broken Harmony stream gives its items, however its tokens arrive."""

import pytest

from tests.golden.harmony.cases import FILES, Case, load, play, tokens, told

CASES = {file: load(file) for file in FILES}
EVERY = [pytest.param(case, id=case.name) for cases in CASES.values() for case in cases]
WHOLE = [pytest.param(case, id=case.name) for case in CASES["recorded"] if case.finish == "stop"]


@pytest.mark.parametrize("case", EVERY)
@pytest.mark.shows("D.1", "D.2", "D.3", "D.5", "D.6", "D2.3", "D2.4", "A7.8")
def test_a_stream_gives_its_items_token_by_token(case: Case) -> None:
    response, reasoning = play(case, [[token] for token in tokens(case.output)])
    assert told(response) == case.items
    assert reasoning == case.reasoning_tokens


@pytest.mark.parametrize("case", EVERY)
def test_a_stream_gives_its_items_whatever_comes_together(case: Case) -> None:
    said = tokens(case.output)
    for size in (2, 3, 5, 8, len(said) or 1):
        response, reasoning = play(case, [said[at : at + size] for at in range(0, len(said), size)])
        assert (told(response), reasoning) == (case.items, case.reasoning_tokens), size


@pytest.mark.parametrize("case", EVERY)
def test_a_stream_gives_its_items_wherever_it_is_cut(case: Case) -> None:
    said = tokens(case.output)
    for cut in range(len(said) + 1):
        response, reasoning = play(case, [said[:cut], said[cut:]])
        assert (told(response), reasoning) == (case.items, case.reasoning_tokens), cut


@pytest.mark.parametrize("case", WHOLE)
@pytest.mark.shows("D2.4")
def test_an_answer_that_ends_early_has_the_beginning_of_its_items_and_the_last_one_is_not_complete(case: Case) -> None:
    said = tokens(case.output)
    for length in range(len(said)):
        cut = Case(
            name="", source="", output=[], finish="length", tools=case.tools, builtins=case.builtins, prompt=case.prompt
        )
        items = told(play(cut, [said[:length]])[0])
        assert len(items) <= len(case.items)
        for item, whole in zip(items, case.items, strict=False):
            assert whole == item or item["status"] == "incomplete", length
            assert all(str(whole[key]).startswith(_sure(item[key])) for key in item.keys() - {"status"}), length
        assert all(item["status"] == "completed" for item in items[:-1])


def _sure(text: str | None) -> str:
    """Half a character is shown as one that is not known."""
    return str(text).removesuffix("�")


def test_there_are_as_many_broken_streams_as_were_promised() -> None:
    assert len(CASES["malformed"]) >= 30
    sources = " ".join([case.source for case in CASES["malformed"]])
    for report in ("harmony/issues/38", "harmony/issues/60", "harmony/issues/80", "vllm/issues/50690"):
        assert report in sources
    for report in ("vllm/issues/51977", "vllm/issues/23567", "llama.cpp/issues/27720"):
        assert report in sources
