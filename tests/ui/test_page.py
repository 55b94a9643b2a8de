"""The page as files: where and how it is served, and what is in it. Covers `transport/operating/page.py`."""

import re
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from urllib.parse import urljoin

import pytest

from antiphon.config import Config
from antiphon.engines.factory import build_engine
from antiphon.transport.middleware.app import App
from antiphon.transport.operating.page import FOLDER, load_files
from antiphon.wiring import build_app
from tests.support.asgi_client import Header, call
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

KEY = "sk-test"
KEY_HEADER: Header = (b"authorization", b"Bearer " + KEY.encode())
MAX_BYTES = 150_000  # of all files of the page


def make_app(**settings: object) -> App:
    config = Config.from_settings(engine="fake", store="memory", **settings)
    return build_app(config, build_engine(config))


@pytest.mark.parametrize("path", ["/", "/ui", "/ui/wire/resp_1?type=error", "/ui/no/such/view"])
@pytest.mark.shows("H7.1")
async def test_the_page_and_links_into_it_are_served_on_loopback(path: str) -> None:
    answer = await call(make_app(), "GET", path)
    assert (answer.status, answer.header(b"content-type")) == (200, b"text/html; charset=utf-8")
    (script,) = re.findall(rb'src="([^"]+)"', answer.body)
    assert urljoin(path, script.decode()) == "/ui/app.js"
    assert answer.header(b"x-antiphon-ignored") is None


async def test_every_file_is_served_with_its_type() -> None:
    app = make_app()
    for path, file in load_files().items():
        answer = await call(app, "GET", f"/ui/{path}")
        assert (answer.status, answer.body) == (200, file.body)
        assert answer.header(b"content-type") == file.headers[0][1]
    assert (await call(app, "GET", "/ui/missing.js")).status == 404
    assert b"<!doctype html>" in (await call(app, "GET", "/ui/../config/areas.py")).body
    assert (await call(app, "POST", "/")).status == 405


@pytest.mark.shows("H7.1")
async def test_the_page_is_off_if_the_operator_says_so_and_by_default_beyond_loopback() -> None:
    for settings in ({"ui": "off"}, {"host": "0.0.0.0", "api_key": (KEY,)}):
        app = make_app(**settings)
        for path in ("/", "/ui", "/ui/app.js"):
            answer = await call(app, "GET", path, KEY_HEADER, (b"accept", b"text/html"))
            assert (answer.status, answer.error["type"]) == (404, "not_found_error")


@pytest.mark.parametrize("settings", [{"api_key": (KEY,)}, {"api_key": (KEY,), "host": "0.0.0.0", "ui": "on"}])
@pytest.mark.shows("H7.2")
async def test_the_page_needs_no_key_and_everything_that_it_reads_does(settings: dict[str, object]) -> None:
    app = make_app(**settings)
    assert [(await call(app, "GET", path)).status for path in ("/", "/ui/app.js", "/ui/log")] == [200] * 3
    for path in ("/v1/capabilities", "/v1/responses", "/metrics", "/nowhere", "/uix"):
        assert (await call(app, "GET", path)).status == 401


@pytest.mark.shows("H7.3")
async def test_the_policy_allows_nothing_but_files_of_the_server() -> None:
    answer = await call(make_app(), "GET", "/")
    policy = dict(
        rule.split(" ", 1) for rule in (answer.header(b"content-security-policy") or b"").decode().split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert "unsafe" not in str(policy)
    assert answer.header(b"x-content-type-options") == b"nosniff"


async def test_an_unchanged_file_is_not_sent_again() -> None:
    app = make_app()
    first = await call(app, "GET", "/ui/app.js")
    etag = first.header(b"etag") or b""
    assert etag == b'"%b"' % sha256(first.body).hexdigest()[:32].encode()
    again = await call(app, "GET", "/ui/app.js", (b"if-none-match", etag))
    assert (again.status, again.body, again.header(b"etag")) == (304, b"", etag)
    assert (await call(app, "GET", "/ui/app.js", (b"if-none-match", b'"other"'))).status == 200


def test_the_page_is_small_and_names_no_other_host() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES
    own = [path for path in files if "vendor" not in path.parts]
    assert not [
        path for path in own if re.search(r"innerHTML|outerHTML|insertAdjacent|\beval\(|unsafe", path.read_text())
    ]


def test_vendored_files_are_those_of_the_list() -> None:
    vendor = FOLDER / "vendor"
    listed = dict(re.findall(r"^\| `([\w.-]+)` .* `([0-9a-f]{64})` \|$", (vendor / "README.md").read_text(), re.M))
    assert listed == {path.name: sha256(path.read_bytes()).hexdigest() for path in vendor.glob("*.js")}
    assert all((vendor / f"LICENSE-{Path(name).stem}").exists() for name in listed)


def test_the_wheel_contains_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("antiphon/ui/")}
    assert packed == {f"antiphon/ui/{path.relative_to(FOLDER)}" for path in FOLDER.rglob("*") if path.is_file()}
