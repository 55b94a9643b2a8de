"""The documentation pages about operating Antiphon name only files and sections that exist."""

import re

import pytest

from tests.support.paths import ROOT

PAGES = ("deployment", "sizing", "upgrades", "security")


def read_page(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_mentioned_file_and_page_exists(page: str) -> None:
    named = {*re.findall(r"(?<![\w/.])((?:tests|deploy|requirements)/[\w./-]*[\w/])", read_page(page))} - {
        "deploy/kubernetes/secret.yaml"
    }
    linked = {f"docs/{name}" for name in re.findall(r"\]\(([a-z-]+\.md)", read_page(page))}
    assert [name for name in sorted(named | linked) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_linked_section_exists(page: str) -> None:
    for name, anchor in re.findall(r"\]\(([a-z-]+)\.md#([\w-]+)\)", read_page(page)):
        titles = re.findall(r"^#+ (.+)$", read_page(name), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}, (
            name,
            anchor,
        )
