"""Pages in files, read as if they came from the web."""

import asyncio
from pathlib import Path

from antiphon.egress import Egress
from antiphon.tools.web_search.page_fetch import Reader
from tests.egress.hosts import egress, hosting, saying

FOLDER = Path(__file__).parent
PAGES = sorted(FOLDER.glob("*.html"))
CHARSETS = {"japanese": "; charset=Shift_JIS"}  # as their servers declare it


def expected(page: Path) -> Path:
    return page.with_suffix(".txt")


async def read(page: Path) -> str:
    body = await asyncio.to_thread(page.read_bytes)
    header = f"Content-Type: text/html{CHARSETS.get(page.stem, '')}"
    async with hosting(saying(body, header)) as host:
        url = f"http://pages.localhost:{host.port}/animals/page.html"
        told, _ = await Reader(_way(host.port), 10.0, 30.0).open(url)
        links = [f"{number} {link}" for number, link in enumerate(told.links)]
        whole = "\n".join([told.title, "", told.text, "", *links, ""])
        return whole.replace(f":{host.port}", "")


def _way(port: int) -> Egress:
    return egress(f"pages.localhost:{port}")
