"""Web pages give their expected text, so that a new version of the extraction library shows its differences.

The pages were written for this test, and the expected texts are Antiphon's own output, reviewed: they show changes, and
not what real pages look like.
"""

from pathlib import Path

import pytest

from tests.golden.web_pages.page_files import PAGES, get_expected_path, read_page

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.shows("E.14")
async def test_a_page_gives_its_expected_text(page: Path) -> None:
    assert await read_page(page) == get_expected_path(page).read_text("utf-8")
