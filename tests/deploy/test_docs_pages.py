"""The pages about running Antiphon name commands, files and drills that exist."""

import re

import pytest

from drills.__main__ import drills
from tests.support.paths import ROOT

PAGES = ("deployment", "sizing", "upgrades", "security")


def text(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_page_that_is_named_is_there(page: str) -> None:
    named = {*re.findall(r"(?<![\w/.])((?:tests|deploy|requirements)/[\w./-]*[\w/])", text(page))} - {
        "deploy/kubernetes/secret.yaml"
    }
    linked = {f"docs/{name}" for name in re.findall(r"\]\(([a-z-]+\.md)", text(page))}
    assert [name for name in sorted(named | linked) if not (ROOT / name).exists()] == []


def test_every_drill_that_is_named_is_one() -> None:
    asked = re.findall(r'make drills ARGS=(?:"([^"]+)"|([\w-]+))', text("security"))
    named = {name for both in asked for name in "".join(both).split()}
    assert named
    assert named <= drills(quick=True).keys()


@pytest.mark.parametrize("page", PAGES)
def test_a_section_that_is_linked_to_is_there(page: str) -> None:
    for name, anchor in re.findall(r"\]\(([a-z-]+)\.md#([\w-]+)\)", text(page)):
        titles = re.findall(r"^#+ (.+)$", text(name), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}, (
            name,
            anchor,
        )
