"""requirements.toml as data: what Antiphon promises, row by row, and how far it is.

The test run (tests/plugins/requirements.py) and docs/compatibility.md both read it through here.
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

    @property
    def claims(self) -> bool:
        """Whether the row says that something works, which a test must then show."""
        return self.status != "planned"


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of one subject. The group whose id is a letter alone gives its area the title."""

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


def unproved(rows: Iterable[Row], shown: Container[str]) -> list[Row]:
    """Those that claim to work, and no test shows it."""
    return [row for row in rows if row.claims and row.id not in shown]


def ripe(rows: Iterable[Row], shown: Container[str]) -> list[Row]:
    """Those that are still planned, although tests show them."""
    return [row for row in rows if not row.claims and row.id in shown]


def load(path: Path = ROOT / "requirements.toml") -> Requirements:
    """Raise ValueError with every fault of the table at once."""
    requirements = msgspec.toml.decode(path.read_bytes(), type=Requirements)
    if faults := list(_faults(requirements)):
        raise ValueError(f"{path.name}:\n" + "\n".join(f"  {fault}" for fault in faults))
    return requirements


def _faults(requirements: Requirements) -> Iterator[str]:
    counted = Counter(row.id for group in requirements.group for row in group.rows)
    yield from (f"{name} stands there {count} times" for name, count in counted.items() if count > 1)
    for group in requirements.group:
        for row in group.rows:
            yield from _faults_of(row, group)


def _faults_of(row: Row, group: Group) -> Iterator[str]:
    if not re.fullmatch(re.escape(group.id) + r"\.[1-9][0-9]*", row.id):
        yield f"{row.id} is no id for group {group.id}"
    if not row.text.endswith("."):
        yield f"{row.id}: the text is no sentence"
    if row.status == "partly" and not row.note:
        yield f"{row.id} is done partly: a note must say what is missing"
    if row.status == "works" and row.note:
        yield f"{row.id} works: a note about what is missing contradicts it"
