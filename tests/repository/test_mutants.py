"""Mutation testing: which changes are drawn, which tests run, and that tests notice one of them."""

import ast
from pathlib import Path

import pytest

from tools.mutants import (
    AREAS,
    PACKAGE,
    ROOT,
    Baseline,
    Mutant,
    Sources,
    _find_failure,
    _make_environment,
    draw_mutants,
    list_mutants,
)

SOURCE = """
LIMIT = 3 < 4

@grüße(True)
def grüße(log, entries, text: str = "not" is not None) -> Literal[True]:
    log.info("done", exc_info=True)
    log.append(f"{not text}")
    count: Literal[True] = 1 + 1
    assert entries == zip(log, entries, strict=True)
    text = "a" + text
    if not 0 < count < 3:
        assert_never(text)
    return not text and (
        LIMIT == 3
    )
"""


def test_mutants_change_one_rule_within_a_function() -> None:
    mutants = [*list_mutants("core", Path("a.py"), SOURCE.encode())]
    assert [(one.line, " ".join(one.before.split()), one.after) for one in mutants] == [
        (7, 'log.append(f"{not text}")', "pass"),
        (8, "1 + 1", "1 - 1"),
        (11, "not 0 < count < 3", "0 < count < 3"),
        (11, "0 < count < 3", "0 <= count < 3"),
        (13, "not text and ( LIMIT == 3 )", "not text or LIMIT == 3"),
        (13, "not text", "text"),
        (14, "LIMIT == 3", "LIMIT != 3"),
    ]
    trees = {ast.dump(ast.parse(mutant.source)) for mutant in mutants}
    assert len(trees - {ast.dump(ast.parse(SOURCE))}) == len(mutants)


def test_a_mutant_is_executed_if_its_statement_is() -> None:
    mutant = [*list_mutants("core", Path("a.py"), SOURCE.encode())][-1]
    assert mutant.is_executed({"antiphon/a.py": {13}})
    assert mutant.is_executed({"antiphon/a.py": {14}})
    assert not mutant.is_executed({"antiphon/a.py": {11, 12, 15}, "antiphon/b.py": {13}})


def test_a_seed_draws_the_same_mutants_again() -> None:
    first, again, other = (draw_mutants([*AREAS], 50, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert {mutant.area for mutant in first} == {*AREAS}
    assert {mutant.area for mutant in draw_mutants(["egress"], 20, 1)} == {"egress"}


def test_the_folders_of_all_areas_exist() -> None:
    for area, tests in AREAS.items():
        assert (PACKAGE / area).is_dir()
        assert all((ROOT / folder).exists() for folder in tests)


def find_mutant(path: Path, before: str) -> Mutant:
    return next(one for one in list_mutants("core", path, (PACKAGE / path).read_bytes()) if one.before == before)


@pytest.mark.slow
def test_the_tests_notice_a_mutant_and_pass_without_it(tmp_path: Path) -> None:
    tests, path = "tests/core/test_stop_strings.py", Path("core/stop_strings.py")
    mutant, sources = find_mutant(path, "self.stopped or not text"), Sources(tmp_path)
    baseline = sources.measure(tests)
    assert baseline.failure is None
    assert mutant.is_executed(baseline.lines)
    found = sources.find_notice(mutant, {tests: baseline})
    assert found is not None
    assert found.startswith(f"{tests}::test_")
    assert sources.find_notice(mutant, {tests: Baseline(None, 0.0, {})}) is None  # no test executes it


TESTS = """
from pathlib import Path

def test_right():
    assert True

def test_wrong_once():
    seen = Path(__file__).with_suffix(".seen")
    second = seen.exists()
    seen.touch()
    assert second
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TESTS, None),
        ("import os\n\ndef test_wrong(): assert 'MUTANT' not in os.environ", "::test_wrong"),
        ("def test_always_wrong(): assert False", None),
        ("import none_such", "exit code 2"),
        ("", None),
    ],
)
def test_a_test_that_fails_twice_and_passes_without_the_mutant_notices_it(
    text: str, found: str | None, tmp_path: Path
) -> None:
    (tmp_path / "test_one.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:schemathesis -p no:valkey")  # seconds to import
    environment = _make_environment(PACKAGE.parent) | {"MUTANT": "1"}
    failure = Sources(tmp_path / "copy")._find_steady_failure(str(tmp_path), environment, 60)
    assert failure is None if found is None else failure is not None and failure.endswith(found)


@pytest.mark.slow
def test_a_run_without_an_end_notices_a_mutant(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("import subprocess\n\ndef test_one(): subprocess.run(['sleep', '60'])\n")
    assert _find_failure([str(tmp_path)], _make_environment(PACKAGE.parent), 0.0) == "no end within 0 s"
