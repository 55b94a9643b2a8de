"""Pages as numbered lines: wrapped, shown a window at a time, looked through."""

from antiphon.tools.web_search.page_view import Page, Pages, found, shown, wrapped
from tests.support.cpu import cpu_time


def test_lines_are_wrapped_at_spaces_and_none_is_lost() -> None:
    assert wrapped("one two three\n\n\n\nfour", 8) == ["one two", "three", "", "four"]
    assert wrapped("aaaaaaaaaabbbbb", 10) == ["aaaaaaaaaa", "bbbbb"]
    assert wrapped("\n\n x \n\n") == [" x"]
    words = "".join(chr(97 + n % 26) if n % 7 else " " for n in range(100_000))
    assert "".join(wrapped(words)).replace(" ", "") == words.replace(" ", "")


def test_a_line_without_an_end_is_wrapped_in_linear_time() -> None:
    with cpu_time() as spent:
        assert len(wrapped("x" * 4_000_000)) == 40_000
        pages = Pages(5, 10_000_000)
        pages.put(pages.reserve(), Page(url="u", title="t", lines=tuple(["a b"] * 100_000)))
        found(0, pages.find(0)[1], "a " * 400 + "x", 2, 1000)
    assert spent.seconds < 1.5


def test_a_window_shows_at_least_a_line_and_no_more_than_it_may() -> None:
    page = Page(url="u", title="t", lines=tuple(["x" * 100] * 50))
    assert "**lines 3 to 3 of 49**" in shown(0, page, 3, 10, 5)
    assert "**lines 0 to 8 of 49**" in shown(0, page, 0, 100, 1000)
