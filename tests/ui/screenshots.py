"""Pictures of all views of the page, for a person to look at: python -m tests.ui.screenshots FOLDER."""

import sys
import tempfile
from pathlib import Path

from tests.support.chromium import run_browser
from tests.ui.conftest import open_filled_page, run_filled_server
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
