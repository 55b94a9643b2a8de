"""Extracts the configuration and code blocks of the pages in docs/clients, which tests run unchanged except for the
address.
"""

import re

from tests.support.paths import DOCS

PAGES = DOCS / "clients"
ADDRESS = "127.0.0.1:8000"  # address of the server in the pages

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def extract_blocks(page: str, language: str, *, port: int = 8000) -> list[str]:
    """Return all blocks in this language, in order, with the address changed to this port."""
    found = _BLOCK.findall((PAGES / page).read_text("utf-8"))
    return [body.replace(ADDRESS, f"127.0.0.1:{port}") for name, body in found if name == language]


def extract_block(page: str, language: str, containing: str = "", *, port: int = 8000) -> str:
    """Return the only block in this language that contains this text."""
    matching = [block for block in extract_blocks(page, language, port=port) if containing in block]
    assert len(matching) == 1, f"{page} has {len(matching)} {language} blocks containing {containing!r}"
    return matching[0]
