"""The pages in docs/clients name the releases that `make test-clients` installs, and the index names all of them."""

import json
import re
import tomllib

import pytest

from tests.clients.sdk_pages.client_pages import PAGES
from tests.support.paths import ROOT, TESTS

NAMES = sorted(page.name for page in PAGES.glob("*.md") if page.name != "index.md")
VERSION = re.compile(r"\d+(?:\.\d+)+")


def pinned() -> set[str]:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    npm = json.loads((TESTS / "clients" / "coding" / "package.json").read_text("utf-8"))
    python = [line.partition("==")[2] for name in ("clients", "litellm") for line in groups[name]]
    return {*python, *npm["dependencies"].values(), *npm["optionalDependencies"].values()}


def run_with(page: str) -> set[str]:
    """The versions that the page begins with."""
    text = (PAGES / page).read_text("utf-8")
    return {*VERSION.findall(text.partition("\n\n")[2].partition("\n\n")[0].partition(", over")[0])}


@pytest.mark.parametrize("page", NAMES)
def test_a_page_names_the_releases_it_is_run_with(page: str) -> None:
    assert run_with(page)
    assert run_with(page) <= pinned()


@pytest.mark.parametrize("page", NAMES)
def test_the_index_has_a_page_once_with_its_releases(page: str) -> None:
    rows = [line for line in (PAGES / "index.md").read_text("utf-8").splitlines() if f"({page})" in line]
    assert len(rows) == 1
    versions = {*VERSION.findall(rows[0])}
    assert versions
    assert versions <= run_with(page)
