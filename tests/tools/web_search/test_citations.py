"""Citation markers become links and annotations with exact indexes, however the text is split."""

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
    ReasoningDelta,
    Refusal,
    Text,
)
from antiphon.protocol.types.parts import FileCitation, Logprob, UrlCitation
from antiphon.tools.web_search.citations import CitationRewriter
from antiphon.tools.web_search.page_view import PagePosition, ResponsePages, WebPage
from tests.parsers.cuts import CUTS, split_at
from tests.support.cpu import cpu_timer

OTTERS, FISH = "https://www.otters.example/food", "https://fish.example/a_(b)?c=d"


def make_pages() -> ResponsePages:
    """Create pages: [0] is a list of results, [1] and [3] are pages, and [2] could not be opened."""
    pages = ResponsePages(10, 100_000)
    results = WebPage(
        url="",
        title="Results",
        lines=("【0†Otters†otters.example】", OTTERS, "", "【1†Fish†fish.example】", FISH),
        links=(OTTERS, FISH),
        positions=(PagePosition(0, 1, OTTERS, "Otters"), PagePosition(3, 4, FISH, "Fish")),
    )
    opened = [
        results,
        WebPage(url=OTTERS, title="Otters", lines=("They eat fish.",) * 20),
        None,
        WebPage(url=FISH, title="Fish", lines=("They swim.",), links=("https://gills.example/",)),
    ]
    for page in opened:
        cursor = pages.reserve()
        if page is not None:
            pages.add(cursor, page)
    return pages


def rewrite(texts: Iterable[str]) -> tuple[str, list[UrlCitation]]:
    """Return the rewritten text and its annotations, each of which must come after the text that it covers."""
    rewriter = CitationRewriter(make_pages())
    text, annotations = "", []
    for delta in [*rewriter.feed([*map(Text, texts)]), *rewriter.finish()]:
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
    ("source", "expected"),
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
def test_a_marker_of_a_read_page_becomes_a_link(source: str, expected: str) -> None:
    text, annotations = rewrite([source])
    assert text == expected
    assert annotations
    for one in annotations:
        link = OTTER_LINK if one.url == OTTERS else FISH_LINK
        assert text[one.start_index : one.end_index] == link
        assert (one.url, one.title) in ((OTTERS, "Otters"), (FISH, "Fish"))


@pytest.mark.parametrize(
    ("source", "expected"),
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
def test_a_marker_of_an_unread_page_is_removed(source: str, expected: str) -> None:
    assert rewrite([source]) == (expected, [])


@pytest.mark.parametrize(
    "source",
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
def test_text_that_is_not_a_marker_is_unchanged(source: str) -> None:
    assert rewrite([source]) == (source, [])
    assert rewrite(source) == (source, [])


def test_markers_after_code_become_links() -> None:
    text, annotations = rewrite(["`a [1] b` [1] and ```\n[3]\n```\n [3] and a ` alone\n [1]"])
    assert [text[one.start_index : one.end_index] for one in annotations] == [OTTER_LINK, FISH_LINK, OTTER_LINK]


PIECES = ["【1†L3-L5】", "【9†L1】", "【3】", "[1]", "[3]", "[9]", "【", "】", "[", "]", "†", "L3", "1", " ", " ", "\n",
          "`", "```", "(", ":", ".", "word", "é", "𝔸", "【1†Fish†fish.example】"]  # fmt: skip
MARKED_TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@given(marked=MARKED_TEXTS, cuts=CUTS)
@pytest.mark.shows("E.15")
def test_splitting_the_text_changes_nothing(marked: str, cuts: list[int]) -> None:
    expected = rewrite([marked])
    assert rewrite(split_at(marked, cuts)) == expected
    assert rewrite(marked) == expected


@given(marked=MARKED_TEXTS)
@pytest.mark.shows("E.15")
def test_every_index_is_exact_and_nothing_else_is_changed(marked: str) -> None:
    text, annotations = rewrite([marked])
    end = 0
    for one in annotations:
        assert end <= one.start_index < one.end_index <= len(text)
        assert text[one.start_index : one.end_index] == (OTTER_LINK if one.url == OTTERS else FISH_LINK)
        end = one.end_index
    retained = "".join([char for char in text if char in "wordé𝔸"])
    without = text.replace(OTTER_LINK, "").replace(FISH_LINK, "")
    assert [char for char in without if char in "wé𝔸"] == [char for char in marked if char in "wé𝔸"]
    assert retained.count("w") >= marked.count("w")


@given(marked=st.text(alphabet="ab .\n`", max_size=200), cuts=CUTS)
def test_text_without_markers_is_unchanged(marked: str, cuts: list[int]) -> None:
    assert rewrite(split_at(marked, cuts)) == (marked, [])


def test_text_is_emitted_as_it_arrives() -> None:
    rewriter = CitationRewriter(make_pages())
    assert rewriter.feed([Text("Hel")]) == [Text("Hel")]
    assert rewriter.feed([Text("lo【1")]) == [Text("lo")]
    assert rewriter.feed([Text("†L3")]) == []
    deltas = rewriter.feed([Text("】, you")])
    assert deltas[0] == Text(f" {OTTER_LINK}")
    assert isinstance(deltas[1], Citation)
    assert deltas[2:] == [Text(", you")]
    assert rewriter.finish() == []


def test_indexes_start_anew_with_each_part() -> None:
    for between in (Break(), ReasoningDelta("hm"), Refusal("no"), CallStarted(0, "f")):
        rewriter = CitationRewriter(make_pages())
        out = [*rewriter.feed([Text("One 【1†L1】"), between, Text("Two 【1†L1】 [")]), *rewriter.finish()]
        annotations = [delta.annotation for delta in out if isinstance(delta, Citation)]
        assert [(one.start_index, one.end_index) for one in annotations if isinstance(one, UrlCitation)] == [
            (4, 4 + len(OTTER_LINK)),
            (4, 4 + len(OTTER_LINK)),
        ]
        assert out.index(between) == 3
        assert "".join([delta.text for delta in out[4:] if isinstance(delta, Text)]) == f"Two {OTTER_LINK} ["


def test_buffered_text_is_emitted_before_the_deltas_after_it() -> None:
    rewriter = CitationRewriter(make_pages())
    deltas: list[Delta] = [Text("open 【1†L"), CallDelta(0, "{"), CallDone(0), Text("1】 x [1"), ReasoningDelta("t")]
    out = rewriter.feed(deltas)
    assert [type(delta) for delta in out] == [
        Text,
        CallDelta,
        CallDone,
        Text,
        Citation,
        Text,
        Text,
        ReasoningDelta,
    ] or [type(delta) for delta in out] == [Text, CallDelta, CallDone, Text, Citation, Text, ReasoningDelta]
    assert "".join([delta.text for delta in out if isinstance(delta, Text)]) == f"open {OTTER_LINK} x [1"


def test_a_citation_of_a_file_moves_with_the_text() -> None:
    rewriter = CitationRewriter(make_pages())
    file = FileCitation(file_id="file-1", filename="a.txt", index=6)
    deltas = [*rewriter.feed([Text("A【1】 b ["), Citation(file), Text("3] c【1】 d")]), *rewriter.finish()]
    text = "A ([otters.example](https://www.otters.example/food)) b ["
    assert "".join(delta.text for delta in deltas if isinstance(delta, Text)).startswith(f"{text}3] c (")
    annotations = [delta.annotation for delta in deltas if isinstance(delta, Citation)]
    assert annotations[1] == FileCitation(file_id="file-1", filename="a.txt", index=len(text))
    assert isinstance(annotations[2], UrlCitation)
    assert annotations[2].start_index > len(text)


def test_no_log_probability_is_lost() -> None:
    rewriter = CitationRewriter(make_pages())
    logprobs = [Logprob(token=token, bytes=[], logprob=-1.0, top_logprobs=[]) for token in ("a ", "【1", "†L1】", "b")]
    out = [*rewriter.feed([Text(one.token, (one,)) for one in logprobs]), *rewriter.finish()]
    assert [one.token for delta in out if isinstance(delta, Text) for one in delta.logprobs] == [
        "a ",
        "【1",
        "†L1】",
        "b",
    ]


@pytest.mark.parametrize("text", ["[", "【", " [1](", "【1†", "[1", "` [1]", "【1†L1】", " ", "【" + "x" * 299])
@pytest.mark.parametrize("size", [7, 300_000])
def test_adversarial_text_takes_linear_time(text: str, size: int) -> None:
    source = text * (200_000 // len(text))
    rewriter = CitationRewriter(make_pages())
    with cpu_timer() as spent:
        for at in range(0, len(source), size):
            rewriter.feed([Text(source[at : at + size])])
        rewriter.finish()
    assert spent.seconds < 10  # a quadratic algorithm takes minutes
