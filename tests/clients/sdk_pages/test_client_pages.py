"""The pages in docs/clients name the releases that `make test-clients` installs, and the index lists every page."""

import json
import re
import tomllib

import pytest

from tests.clients.sdk_pages.client_pages import PAGES
from tests.support.paths import ROOT, TESTS

NAMES = sorted(page.name for page in PAGES.glob("*.md") if page.name != "index.md")
VERSION = re.compile(r"\d+(?:\.\d+)+")


def read_pinned_versions() -> set[str]:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    npm = json.loads((TESTS / "clients" / "coding" / "package.json").read_text("utf-8"))
    python = [line.partition("==")[2] for name in ("clients", "litellm") for line in groups[name]]
    return {*python, *npm["dependencies"].values(), *npm["optionalDependencies"].values()}


def read_tested_versions(page: str) -> set[str]:
    """Return the versions that the first paragraph of the page names."""
    text = (PAGES / page).read_text("utf-8")
    return {*VERSION.findall(text.partition("\n\n")[2].partition("\n\n")[0].partition(", over")[0])}


@pytest.mark.parametrize("page", NAMES)
def test_a_page_names_only_pinned_releases(page: str) -> None:
    assert read_tested_versions(page)
    assert read_tested_versions(page) <= read_pinned_versions()


@pytest.mark.parametrize("page", NAMES)
def test_the_index_lists_each_page_once_with_its_releases(page: str) -> None:
    rows = [line for line in (PAGES / "index.md").read_text("utf-8").splitlines() if f"({page})" in line]
    assert len(rows) == 1
    versions = {*VERSION.findall(rows[0])}
    assert versions
    assert versions <= read_tested_versions(page)
