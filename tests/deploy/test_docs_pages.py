"""The documentation pages about operating Antiphon name only files that exist."""

import re

import pytest

from tests.support.paths import ROOT

PAGES = ("deployment", "sizing", "upgrades", "security")


def read_page(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_mentioned_file_exists(page: str) -> None:
    named = {*re.findall(r"(?<![\w/.])((?:tests|deploy|requirements)/[\w./-]*[\w/])", read_page(page))} - {
        "deploy/kubernetes/secret.yaml"
    }
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
