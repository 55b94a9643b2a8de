"""Loads requirements.toml: the requirements of Antiphon, row by row, with their status.

The test run (tests/plugins/requirements.py) and docs/compatibility.md both use this module.
"""

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

ROOT = Path(__file__).parent.parent
Status = Literal["works", "partly", "planned"]


class Row(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    text: str
    status: Status
    target: str = ""
    note: str = ""
    evidence: Literal["", "format"] = ""  # "format": tests have texts in the format of models, and no model

    @property
    def is_claimed(self) -> bool:
        """Whether the row claims that something works, which a test must then show."""
        return self.status != "planned"


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of one subject. The group whose id is a single letter gives its area the title."""

    id: str
    title: str
    rows: list[Row]

    @property
    def letter(self) -> str:
        return self.id[0]


class Requirements(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    group: list[Group]

    def rows(self) -> dict[str, Row]:
        return {row.id: row for group in self.group for row in group.rows}


def find_unproved(rows: Iterable[Row], shown: Container[str]) -> list[Row]:
    """Return the rows that claim to work although no test shows it."""
    return [row for row in rows if row.is_claimed and row.id not in shown]


def find_proved_plans(rows: Iterable[Row], shown: Container[str]) -> list[Row]:
    """Return the rows that are still planned although tests show them."""
    return [row for row in rows if not row.is_claimed and row.id in shown]


def load(path: Path = ROOT / "requirements.toml") -> Requirements:
    """Load the table. Raises ValueError with all of its faults."""
    requirements = msgspec.toml.decode(path.read_bytes(), type=Requirements)
    if faults := list(_find_faults(requirements)):
        raise ValueError(f"{path.name}:\n" + "\n".join(f"  {fault}" for fault in faults))
    return requirements


def _find_faults(requirements: Requirements) -> Iterator[str]:
    counts = Counter(row.id for group in requirements.group for row in group.rows)
    yield from (f"{name} occurs {count} times" for name, count in counts.items() if count > 1)
    for group in requirements.group:
        for row in group.rows:
            yield from _find_row_faults(row, group)


def _find_row_faults(row: Row, group: Group) -> Iterator[str]:
    if not re.fullmatch(re.escape(group.id) + r"\.[1-9][0-9]*", row.id):
        yield f"{row.id} is no id for group {group.id}"
    if not row.text.endswith("."):
        yield f"{row.id}: the text is no sentence"
    if row.status == "partly" and not row.note:
        yield f"{row.id} is done partly: a note must say what is missing"
    if row.status == "works" and row.note:
        yield f"{row.id} works: a note about what is missing contradicts it"
