"""The documentation pages about operating Antiphon name only files, sections and drills that exist."""

import re

import pytest

from drills.registry import build_drills
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


def test_every_mentioned_drill_exists() -> None:
    commands = re.findall(r'make drills ARGS=(?:"([^"]+)"|([\w-]+))', read_page("security"))
    named = {name for both in commands for name in "".join(both).split()}
    assert named
    assert named <= build_drills("quick").keys()


@pytest.mark.parametrize("page", PAGES)
def test_every_linked_section_exists(page: str) -> None:
    for name, anchor in re.findall(r"\]\(([a-z-]+)\.md#([\w-]+)\)", read_page(page)):
        titles = re.findall(r"^#+ (.+)$", read_page(name), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}, (
            name,
            anchor,
        )
