"""Pictures of all views of the page, for a person to look at: python -m tests.ui.screenshots FOLDER."""

import sys
import tempfile
from pathlib import Path

from tests.support.chromium import Browser, run_browser
from tests.support.server_process import run_server
from tests.ui.conftest import open_filled_page, run_filled_server
from tests.ui.test_items import create_response
from tests.ui.test_views import visit_views

SIZES = {"large": (1200, 900), "small": (360, 740)}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as stored,
        run_filled_server(Path(stored)) as server,
        run_browser() as browser,
    ):
        for scheme in ("light", "dark"):
            for size, (width, height) in SIZES.items():
                with open_filled_page(browser, server) as page:
                    page.set_size(width, height)
                    page.set_scheme(scheme)
                    for path in visit_views(page):
                        page.screenshot(folder / f"{path.rpartition('/')[2]}-{scheme}-{size}.png")
        show_prompt(browser, folder)


def show_prompt(browser: Browser, folder: Path) -> None:
    """Picture a prompt that is rendered here: with the text of the template and the cached prefix marked."""
    with run_server("--engine", "fake", "--fake-level", "tokens", "--keep-traces", "50") as server:
        first = create_response(server, "What is <|im_end|>?", instructions="You are a helpful assistant.")
        fields = {"instructions": "You are a helpful assistant.", "previous_response_id": first}
        second = create_response(server, "And <|im_start|>?", **fields)
        for scheme in ("light", "dark"):
            with browser.new_page() as page:
                page.set_size(*SIZES["large"])
                page.set_scheme(scheme)
                page.open(f"{server.url}/ui/timing/{second}")
                page.wait_for_text("are those of")
                page.screenshot(folder / f"prompt-{scheme}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
