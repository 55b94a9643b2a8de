"""The page below a prefix, in a browser: the application is mounted in another one."""

import threading
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from antiphon import create_app
from tests.support.chromium import Browser
from tests.support.server_process import repeat_until_timeout
from tests.ui.test_talk import ask, wait_for_turns

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture
def origin() -> Iterator[str]:
    """A server that has the application at /sub."""
    app = create_app(engine="fake", store="memory")
    outer = Starlette(routes=[Mount("/sub", app)], lifespan=app.lifespan)
    server = uvicorn.Server(uvicorn.Config(outer, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        for _ in repeat_until_timeout():
            if server.started:
                break
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)


@pytest.mark.shows("H7.21")
def test_the_page_works_below_a_prefix(browser: Browser, origin: str) -> None:
    with browser.new_page() as page:
        page.open(f"{origin}/sub/")
        page.wait_for("document.querySelector('#model option')")
        for count, transport in enumerate(("sse", "websocket"), 1):
            page.fill("[name=transport]", transport)
            ask(page, f"over {transport}")
            wait_for_turns(page, count)
        page.wait_for("location.pathname.startsWith('/sub/ui/talk/resp_')")
        page.open(page.evaluate("location.href"))
        wait_for_turns(page, 2)
        page.click(".figures a")
        page.wait_for("location.pathname.startsWith('/sub/ui/wire/resp_')")
        page.wait_for_text("ended")
        for view in page.evaluate("[...document.querySelectorAll('nav a')].map((one) => one.pathname)"):
            assert view.startswith("/sub/ui/")
            page.click(f"nav a[href='{view}']")
            page.wait_for(
                f"location.pathname === '{view}' && document.querySelector('[aria-current]').pathname === '{view}'"
            )
        page.click("nav a[href='/sub/ui/connect']")
        page.wait_for_text(f"{origin}/sub/v1")
        page.click("header a.name")
        page.wait_for("location.pathname === '/sub/'")
        page.fill("[aria-label='Copy as']", "curl")
        page.wait_for_text(f"{origin}/sub/v1/responses")
        page.check(f"{origin}/sub", allowed=["antiphon/keys"])  # this store has none
