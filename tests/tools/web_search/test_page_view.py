"""Pages as numbered lines: wrapping, windows, and search."""

from antiphon.tools.web_search.page_view import ResponsePages, WebPage, render_matches, render_window, wrap_lines
from tests.support.cpu import cpu_timer


def test_lines_are_wrapped_at_spaces_and_no_text_is_lost() -> None:
    assert wrap_lines("one two three\n\n\n\nfour", 8) == ["one two", "three", "", "four"]
    assert wrap_lines("aaaaaaaaaabbbbb", 10) == ["aaaaaaaaaa", "bbbbb"]
    assert wrap_lines("\n\n x \n\n") == [" x"]
    text = "".join(chr(97 + n % 26) if n % 7 else " " for n in range(100_000))
    assert "".join(wrap_lines(text)).replace(" ", "") == text.replace(" ", "")


def test_a_very_long_line_is_wrapped_in_linear_time() -> None:
    with cpu_timer() as spent:
        assert len(wrap_lines("x" * 4_000_000)) == 40_000
        pages = ResponsePages(5, 10_000_000)
        pages.add(pages.reserve(), WebPage(url="u", title="t", lines=tuple(["a b"] * 100_000)))
        render_matches(0, pages.require(0)[1], "a " * 400 + "x", 2, 1000)
    assert spent.seconds < 1.5


def test_a_window_shows_at_least_one_line_and_respects_its_limits() -> None:
    page = WebPage(url="u", title="t", lines=tuple(["x" * 100] * 50))
    assert "**lines 3 to 3 of 49**" in render_window(0, page, 3, 10, 5)
    assert "**lines 0 to 8 of 49**" in render_window(0, page, 0, 100, 1000)
