"""Marks become links and annotations whose indexes are exact, however the text is cut."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Citation,
    Delta,
    Refusal,
    Text,
    Thought,
)
from antiphon.protocol.types.items import UrlCitation
from antiphon.protocol.types.response import Logprob
from antiphon.tools.web_search.citations import Citations
from antiphon.tools.web_search.page_view import Page, Pages, Spot
from tests.parsers.cuts import CUTS, pieces
from tests.support.cpu import cpu_time

OTTERS, FISH = "https://www.otters.example/food", "https://fish.example/a_(b)?c=d"


def read_pages() -> Pages:
    """[0] is a list of results, [1] and [3] are pages; [2] could not be opened."""
    pages = Pages(10, 100_000)
    results = Page(
        url="",
        title="Results",
        lines=("【0†Otters†otters.example】", OTTERS, "", "【1†Fish†fish.example】", FISH),
        links=(OTTERS, FISH),
        spots=(Spot(0, 1, OTTERS, "Otters"), Spot(3, 4, FISH, "Fish")),
    )
    opened = [
        results,
        Page(url=OTTERS, title="Otters", lines=("They eat fish.",) * 20),
        None,
        Page(url=FISH, title="Fish", lines=("They swim.",), links=("https://gills.example/",)),
    ]
    for page in opened:
        cursor = pages.reserve()
        if page is not None:
            pages.put(cursor, page)
    return pages


def cited(texts: Iterable[str]) -> tuple[str, list[UrlCitation]]:
    """All that comes of it; every annotation comes once what it cites was said."""
    made = Citations(read_pages())
    text, annotations = "", []
    for delta in [*made.feed([*map(Text, texts)]), *made.finish()]:
        if isinstance(delta, Citation):
            assert isinstance(delta.annotation, UrlCitation)
            annotations.append(delta.annotation)
            assert delta.annotation.end_index <= len(text)
        else:
            assert isinstance(delta, Text)
            text += delta.text
    return text, annotations


OTTER_LINK = "([otters.example](https://www.otters.example/food))"
FISH_LINK = "([fish.example](https://fish.example/a_%28b%29?c=d))"


@pytest.mark.shows("E.15")
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("They eat fish 【1†L3-L5】.", f"They eat fish {OTTER_LINK}."),
        ("They eat fish【1†L3】.", f"They eat fish {OTTER_LINK}."),
        ("They eat fish 【1】.", f"They eat fish {OTTER_LINK}."),
        ("They eat fish [1].", f"They eat fish {OTTER_LINK}."),
        ("They eat fish. [1†L3-L5]", f"They eat fish. {OTTER_LINK}"),
        ("They eat fish [1]", f"They eat fish {OTTER_LINK}"),
        ("【1†source】", OTTER_LINK),
        ("Results too 【0†L3】, by line", f"Results too {FISH_LINK}, by line"),
        ("Links too 【1†Fish†fish.example】.", f"Links too {FISH_LINK}."),
        ("Both 【1†L3】【3†L0】.", f"Both {OTTER_LINK} {FISH_LINK}."),
        ("Twice 【1†L3】【1†L9】 【1†L0】.", f"Twice {OTTER_LINK}."),
        ("(in brackets 【1†L3】)", f"(in brackets {OTTER_LINK})"),
        ("é 漢字 𝔸【3†L0】 end", f"é 漢字 𝔸 {FISH_LINK} end"),
    ],
)
def test_a_mark_of_something_read_becomes_a_link(said: str, told: str) -> None:
    text, annotations = cited([said])
    assert text == told
    assert annotations
    for one in annotations:
        link = OTTER_LINK if one.url == OTTERS else FISH_LINK
        assert text[one.start_index : one.end_index] == link
        assert (one.url, one.title) in ((OTTERS, "Otters"), (FISH, "Fish"))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Unknown 【9†L3】.", "Unknown."),
        ("Unknown 【9†L3】 again", "Unknown again"),
        ("Not opened【2†L1】 at all", "Not opened at all"),
        ("Unknown 【9†L3】", "Unknown"),
        ("No such result 【0†L9】!", "No such result!"),
        ("No such link 【7†Fish†fish.example】 either", "No such link either"),
        ("No such host 【1†Fish†else.example】.", "No such host."),
    ],
)
def test_a_mark_of_something_that_was_not_read_is_left_out(said: str, told: str) -> None:
    assert cited([said]) == (told, [])


@pytest.mark.parametrize(
    "said",
    [
        "【9】 and 【0】 and 【注意】 and 【】",
        "x[1] = y[3]",
        "[1](https://x.example/) and [1][ref] and [1]: https://x.example",
        "see [9], [one], [1,3] and [ ]",
        "in `a [1] b` and ```\nlist [1]\n``` code",
        "open 【1†L3\nand never closed",
        "open 【" + "x" * 400 + "】",
        "[" * 10 + "1" + "]" * 10 + "x",
        "an end [1",
        "an end 【1†L",
        "a space at the end ",
        "  two   spaces ",
    ],
)
def test_what_is_no_mark_stays_as_it_is(said: str) -> None:
    assert cited([said]) == (said, [])
    assert cited(said) == (said, [])


def test_after_code_marks_count_again() -> None:
    text, annotations = cited(["`a [1] b` [1] and ```\n[3]\n```\n [3] and a ` alone\n [1]"])
    assert [text[one.start_index : one.end_index] for one in annotations] == [OTTER_LINK, FISH_LINK, OTTER_LINK]


PIECES = ["【1†L3-L5】", "【9†L1】", "【3】", "[1]", "[3]", "[9]", "【", "】", "[", "]", "†", "L3", "1", " ", " ", "\n",
          "`", "```", "(", ":", ".", "word", "é", "𝔸", "【1†Fish†fish.example】"]  # fmt: skip
SAID = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@given(said=SAID, cuts=CUTS)
@pytest.mark.shows("E.15")
def test_cutting_the_text_elsewhere_changes_nothing(said: str, cuts: list[int]) -> None:
    whole = cited([said])
    assert cited(pieces(said, cuts)) == whole
    assert cited(said) == whole


@given(said=SAID)
@pytest.mark.shows("E.15")
def test_every_index_is_exact_and_nothing_else_is_changed(said: str) -> None:
    text, annotations = cited([said])
    end = 0
    for one in annotations:
        assert end <= one.start_index < one.end_index <= len(text)
        assert text[one.start_index : one.end_index] == (OTTER_LINK if one.url == OTTERS else FISH_LINK)
        end = one.end_index
    kept = "".join([char for char in text if char in "wordé𝔸"])
    without = text.replace(OTTER_LINK, "").replace(FISH_LINK, "")
    assert [char for char in without if char in "wé𝔸"] == [char for char in said if char in "wé𝔸"]
    assert kept.count("w") >= said.count("w")


@given(said=st.text(alphabet="ab .\n`", max_size=200), cuts=CUTS)
def test_text_without_marks_comes_out_whole(said: str, cuts: list[int]) -> None:
    assert cited(pieces(said, cuts)) == (said, [])


def test_text_is_told_as_it_comes() -> None:
    made = Citations(read_pages())
    assert made.feed([Text("Hel")]) == [Text("Hel")]
    assert made.feed([Text("lo【1")]) == [Text("lo")]
    assert made.feed([Text("†L3")]) == []
    told = made.feed([Text("】, you")])
    assert told[0] == Text(f" {OTTER_LINK}")
    assert isinstance(told[1], Citation)
    assert told[2:] == [Text(", you")]
    assert made.finish() == []


def test_a_new_part_counts_from_its_own_beginning() -> None:
    for between in (Break(), Thought("hm"), Refusal("no"), CallStarted(0, "f")):
        made = Citations(read_pages())
        out = [*made.feed([Text("One 【1†L1】"), between, Text("Two 【1†L1】 [")]), *made.finish()]
        places = [delta.annotation for delta in out if isinstance(delta, Citation)]
        assert [(one.start_index, one.end_index) for one in places if isinstance(one, UrlCitation)] == [
            (4, 4 + len(OTTER_LINK)),
            (4, 4 + len(OTTER_LINK)),
        ]
        assert out.index(between) == 3
        assert "".join([delta.text for delta in out[4:] if isinstance(delta, Text)]) == f"Two {OTTER_LINK} ["


def test_what_was_held_back_comes_before_what_follows_it() -> None:
    made = Citations(read_pages())
    deltas: list[Delta] = [Text("open 【1†L"), CallDelta(0, "{"), CallDone(0), Text("1】 x [1"), Thought("t")]
    out = made.feed(deltas)
    assert [type(delta) for delta in out] == [Text, CallDelta, CallDone, Text, Citation, Text, Text, Thought] or [
        type(delta) for delta in out
    ] == [Text, CallDelta, CallDone, Text, Citation, Text, Thought]
    assert "".join([delta.text for delta in out if isinstance(delta, Text)]) == f"open {OTTER_LINK} x [1"


def test_no_log_probability_is_lost() -> None:
    made = Citations(read_pages())
    given_ = [Logprob(token=token, bytes=[], logprob=-1.0, top_logprobs=[]) for token in ("a ", "【1", "†L1】", "b")]
    out = [*made.feed([Text(one.token, (one,)) for one in given_]), *made.finish()]
    assert [one.token for delta in out if isinstance(delta, Text) for one in delta.logprobs] == [
        "a ",
        "【1",
        "†L1】",
        "b",
    ]


@pytest.mark.parametrize("text", ["[", "【", " [1](", "【1†", "[1", "` [1]", "【1†L1】", " ", "【" + "x" * 299])
@pytest.mark.parametrize("size", [7, 300_000])
def test_text_made_to_be_slow_takes_linear_time(text: str, size: int) -> None:
    said = text * (200_000 // len(text))
    made = Citations(read_pages())
    with cpu_time() as spent:
        for at in range(0, len(said), size):
            made.feed([Text(said[at : at + size])])
        made.finish()
    assert spent.seconds < 10  # by quadratic means it takes minutes
