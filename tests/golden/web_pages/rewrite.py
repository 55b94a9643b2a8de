"""Rewrites the expected text of every page: `python -m tests.golden.web_pages.rewrite`.

Review the resulting diff.
"""

import asyncio

from tests.golden.web_pages.page_files import PAGES, get_expected_path, read_page


def main() -> None:
    for page in PAGES:
        get_expected_path(page).write_text(asyncio.run(read_page(page)), "utf-8")


if __name__ == "__main__":
    main()
