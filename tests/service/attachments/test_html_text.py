"""Tests `service/attachments/html_text.py`."""

import pytest

from antiphon.service.attachments.html_text import extract_html_text


def test_title_headings_paragraphs_lists_and_tables_are_lines() -> None:
    page = """<!doctype html><html><head><title>Sizes &amp; weights</title><style>p { color: red }</style></head>
    <body><h1>Otters</h1> <p>Sea   otters
    are <b> heavy</b> .</p><ul><li>one<li>two</ul>
    <table><tr><th>kind<th>kg</tr><tr><td>sea</td><td>30</td></tr></table><h2>Food</h2>fish<br/>crabs</body></html>"""
    assert extract_html_text(page) == (
        "Sizes & weights\n\n# Otters\n\nSea otters are heavy .\n\n* one\n* two\n\n"
        "kind\tkg\nsea\t30\n\n## Food\n\nfish\ncrabs"
    )


@pytest.mark.parametrize("tag", ["script", "style", "noscript", "template", "svg", "nav", "select", "textarea"])
def test_scripts_styles_navigation_and_controls_are_left_out(tag: str) -> None:
    assert extract_html_text(f"before <{tag}>not <i>this</i></{tag}>after") == "before after"


def test_nested_navigation_is_left_out_to_its_own_end() -> None:
    assert extract_html_text("a<nav>b<nav>c</nav>d</nav>e") == "ae"
    assert extract_html_text("a<nav>b<template>c</template>d</nav>e") == "ae"


def test_an_element_that_does_not_end_hides_no_text_unless_it_is_code() -> None:
    assert extract_html_text("a<nav>b<p>c") == "ab\n\nc"
    assert extract_html_text("a</nav>b") == "ab"
    assert extract_html_text("a<script>b<p>c") == "a"
    assert extract_html_text("a<nav>b<script>c()</script>d<svg/>e") == "abde"


def test_spaces_of_preformatted_text_are_retained() -> None:
    assert extract_html_text("<p> x </p><pre>if a:\n    b\n\n    c</pre> y") == "x\n\nif a:\n    b\n\n    c\n\ny"
    assert extract_html_text("</pre>a  b") == "a b"


def test_character_references_and_comments_are_resolved() -> None:
    assert extract_html_text("&lt;b&gt;&#x1F642;<!-- hidden -->&nbsp;x &unknown;") == "<b>🙂\xa0x &unknown;"
