"""What the pages in docs/clients show: their configuration and code, run by tests as they are, but for the address."""

import re

from tests.support.paths import DOCS

PAGES = DOCS / "clients"
ADDRESS = "127.0.0.1:8000"  # where the pages have the server

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str, *, port: int = 8000) -> list[str]:
    """All blocks in this language, in order, for a server on that port."""
    found = _BLOCK.findall((PAGES / page).read_text("utf-8"))
    return [body.replace(ADDRESS, f"127.0.0.1:{port}") for name, body in found if name == language]


def shown(page: str, language: str, holding: str = "", *, port: int = 8000) -> str:
    """The one block in this language that holds these words."""
    held = [block for block in blocks(page, language, port=port) if holding in block]
    assert len(held) == 1, f"{page} has {len(held)} blocks of {language} that hold {holding!r}"
    return held[0]
