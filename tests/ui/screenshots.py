"""Pictures of all views of the page, for a person to look at: python -m tests.ui.screenshots FOLDER."""

import sys
from pathlib import Path

from tests.support.chromium import run_browser
from tests.support.server_process import run_server
from tests.ui.conftest import REPLIES
from tests.ui.test_views import visit_views

SIZES = {"large": (1200, 900), "small": (360, 740)}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    flags = ("--engine", "fake", "--fake-script", str(REPLIES), "--fake-rate", "200")
    with run_server(*flags) as server, run_browser() as browser:
        for scheme in ("light", "dark"):
            for size, (width, height) in SIZES.items():
                with browser.new_page() as page:
                    page.set_size(width, height)
                    page.set_scheme(scheme)
                    page.open(f"{server.url}/")
                    for path in visit_views(page):
                        page.screenshot(folder / f"{path.rpartition('/')[2]}-{scheme}-{size}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
