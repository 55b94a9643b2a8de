"""Mutation testing: which changes are drawn, and that tests notice one of them."""

import ast
from pathlib import Path

import pytest

from tools.mutants import AREAS, PACKAGE, ROOT, draw_mutants, is_noticed, list_mutants

SOURCE = """
LIMIT = 3 < 4

def grüße(log, entries, text: str = "not" is not None) -> bool:
    log.info("done", exc_info=True)
    entries.append(f"{not text}")
    return not text and (
        LIMIT == 3
    )
"""


def test_mutants_change_one_rule_within_a_function() -> None:
    mutants = [*list_mutants(Path("a.py"), SOURCE.encode())]
    assert [(one.line, " ".join(one.before.split()), one.after) for one in mutants] == [
        (6, 'entries.append(f"{not text}")', "pass"),
        (7, "not text and ( LIMIT == 3 )", "not text or LIMIT == 3"),
        (7, "not text", "text"),
        (8, "LIMIT == 3", "LIMIT != 3"),
    ]
    for mutant in mutants:
        ast.parse(mutant.source)


def test_a_seed_draws_the_same_mutants_again() -> None:
    first, again, other = draw_mutants(50, 1), draw_mutants(50, 1), draw_mutants(50, 2)
    assert first == again != other
    assert {area for area, _ in first} == {*AREAS}


def test_the_folders_of_all_areas_exist() -> None:
    for area, tests in AREAS.items():
        assert (PACKAGE / area).is_dir()
        assert all((ROOT / folder).is_dir() for folder in tests)


def test_the_tests_notice_a_mutant_and_pass_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("core/stop_strings.py")
    monkeypatch.setitem(AREAS, "core", ())
    mutants = list_mutants(path, (PACKAGE / path).read_bytes())
    mutant = next(one for one in mutants if one.before == "self.stopped or not text")
    assert not is_noticed("core", None, path)
    assert is_noticed("core", mutant, path)
