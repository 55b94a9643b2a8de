"""Every recorded and every malformed Harmony stream gives its items, at every cut and after truncation."""

import pytest

from tests.golden.harmony.cases import FILES, Case, encode_tokens, load_cases, run_case, summarise_output

CASES = {file: load_cases(file) for file in FILES}
ALL_CASES = [pytest.param(case, id=case.name) for cases in CASES.values() for case in cases]
COMPLETE_CASES = [pytest.param(case, id=case.name) for case in CASES["recorded"] if case.finish == "stop"]


@pytest.mark.parametrize("case", ALL_CASES)
@pytest.mark.shows("D.1", "D.2", "D.3", "D.5", "D.6", "D2.4", "A7.8")
def test_a_stream_gives_its_items_token_by_token(case: Case) -> None:
    response, reasoning = run_case(case, [[token] for token in encode_tokens(case.output)])
    assert summarise_output(response) == case.items
    assert reasoning == case.reasoning_tokens


@pytest.mark.parametrize("case", ALL_CASES)
def test_a_stream_gives_its_items_in_pieces_of_any_size(case: Case) -> None:
    ids = encode_tokens(case.output)
    for size in (2, 3, 5, 8, len(ids) or 1):
        response, reasoning = run_case(case, [ids[at : at + size] for at in range(0, len(ids), size)])
        assert (summarise_output(response), reasoning) == (case.items, case.reasoning_tokens), size


@pytest.mark.parametrize("case", ALL_CASES)
def test_a_stream_gives_its_items_at_every_cut(case: Case) -> None:
    ids = encode_tokens(case.output)
    for cut in range(len(ids) + 1):
        response, reasoning = run_case(case, [ids[:cut], ids[cut:]])
        assert (summarise_output(response), reasoning) == (case.items, case.reasoning_tokens), cut


@pytest.mark.parametrize("case", COMPLETE_CASES)
@pytest.mark.shows("D2.4")
def test_a_truncated_stream_gives_its_first_items_and_an_incomplete_last_one(case: Case) -> None:
    ids = encode_tokens(case.output)
    for length in range(len(ids)):
        cut = Case(
            name="", source="", output=[], finish="length", tools=case.tools, builtins=case.builtins, prompt=case.prompt
        )
        items = summarise_output(run_case(cut, [ids[:length]])[0])
        assert len(items) <= len(case.items)
        for item, expected in zip(items, case.items, strict=False):
            assert expected == item or item["status"] == "incomplete", length
            assert all(
                str(expected[key]).startswith(_strip_partial_character(item[key])) for key in item.keys() - {"status"}
            ), length
        assert all(item["status"] == "completed" for item in items[:-1])


def _strip_partial_character(text: str | None) -> str:
    """Remove the replacement character that stands for a partial character at the end."""
    return str(text).removesuffix("�")


def test_at_least_thirty_malformed_streams_cover_the_reported_issues() -> None:
    assert len(CASES["malformed"]) >= 30
    sources = " ".join([case.source for case in CASES["malformed"]])
    for report in ("harmony/issues/38", "harmony/issues/60", "harmony/issues/80", "vllm/issues/50690"):
        assert report in sources
    for report in ("vllm/issues/51977", "vllm/issues/23567", "llama.cpp/issues/27720"):
        assert report in sources
