"""Every new name on docs/development/renames.md exists in the source."""

import ast
from functools import cache
from pathlib import Path

from tests.support.paths import DOCS, SRC

PACKAGE = SRC / "antiphon"


def test_every_new_name_on_the_page_of_renames_exists() -> None:
    rows = [
        [cell.strip(" `") for cell in line.strip("|\n").split("|")]
        for line in (DOCS / "development" / "renames.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    modules = [row[1] for row in rows if len(row) == 2]
    classes = [(row[1], row[2]) for row in rows if len(row) == 3]
    assert modules
    assert classes
    assert [module for module in modules if not (PACKAGE / module).exists()] == []
    assert [(name, module) for name, module in classes if name not in _list_names(PACKAGE / module)] == []


@cache
def _list_names(path: Path) -> set[str]:
    """Return the names that a module defines: classes, and types that are assigned to a name."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body if path.exists() else ():
        match node:
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
    return names
