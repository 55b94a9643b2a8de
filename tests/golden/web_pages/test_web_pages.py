"""Pages as they are on the web, and what is read of them. A new version of what extracts them shows itself here."""

from pathlib import Path

import pytest

from tests.golden.web_pages.page_files import PAGES, expected, read

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.shows("E.14")
async def test_a_page_is_read_as_it_was(page: Path) -> None:
    assert await read(page) == expected(page).read_text("utf-8")
