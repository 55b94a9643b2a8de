"""The examples of docs/testing.md and docs/extending.md are what the package does."""

import re
from typing import Any

import pytest

from antiphon.plugins import GROUPS
from antiphon.testing import contracts
from tests.support.paths import ROOT

TESTING = (ROOT / "docs" / "testing.md").read_text("utf-8")
EXTENDING = (ROOT / "docs" / "extending.md").read_text("utf-8")


@pytest.mark.shows("I4.3")
def test_the_first_example_runs() -> None:
    example = re.search(r"```python\n(.+?)```", TESTING, re.DOTALL)
    assert example is not None
    names: dict[str, Any] = {}
    exec(example[1], names)  # noqa: S102 - a text of this repository
    names["client"].close()  # otherwise its socket would be reported in the middle of another test


def test_every_group_and_every_contract_is_documented() -> None:
    assert {*re.findall(r"^\| `antiphon\.(\w+)`", EXTENDING, re.MULTILINE)} == {*GROUPS}
    suites = {name for name in vars(contracts) if re.fullmatch(r"[A-Z]\w+Contract", name)}
    assert {*re.findall(r"^\| `(\w+Contract)`", TESTING, re.MULTILINE)} == suites
    assert {*re.findall(r"`(\w+Contract)` \|$", EXTENDING, re.MULTILINE)} == suites
