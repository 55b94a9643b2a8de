"""Web pages from files that were written for tests, served by a local host and read as if they came from the web."""

import asyncio
from pathlib import Path

from antiphon.egress import EgressClient
from antiphon.tools.web_search.page_fetch import PageReader
from tests.egress.hosts import make_egress_client, respond_with, run_host

FOLDER = Path(__file__).parent
PAGES = sorted(FOLDER.glob("*.html"))
CHARSETS = {"japanese": "; charset=Shift_JIS"}  # as declared by their servers


def get_expected_path(page: Path) -> Path:
    return page.with_suffix(".txt")


async def read_page(page: Path) -> str:
    body = await asyncio.to_thread(page.read_bytes)
    header = f"Content-Type: text/html{CHARSETS.get(page.stem, '')}"
    async with run_host(respond_with(body, header)) as host:
        url = f"http://pages.localhost:{host.port}/animals/page.html"
        content, _ = await PageReader(_make_client(host.port), 10.0, 30.0).read_page(url)
        links = [f"{number} {link}" for number, link in enumerate(content.links)]
        text = "\n".join([content.title, "", content.text, "", *links, ""])
        return text.replace(f":{host.port}", "")


def _make_client(port: int) -> EgressClient:
    return make_egress_client(f"pages.localhost:{port}")
