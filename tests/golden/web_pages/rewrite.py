"""Writes what is expected of every page anew: `python -m tests.golden.web_pages.rewrite`.

The difference is to be read.
"""

import asyncio

from tests.golden.web_pages.page_files import PAGES, expected, read


def main() -> None:
    for page in PAGES:
        expected(page).write_text(asyncio.run(read(page)), "utf-8")


if __name__ == "__main__":
    main()
