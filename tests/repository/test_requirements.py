"""The requirements table and the plugin that checks it: a claim that no test shows fails a full run."""

import json
from pathlib import Path

import pytest

from tests.golden.calls import test_calls
from tests.golden.reasoning import test_reasoning
from tests.plugins.services import SERVICES
from tools import docs_pages
from tools.parallel_tests import MEASUREMENT_MARK, MODEL_MARK
from tools.requirements import load

PASSING = "import pytest\n\n@pytest.mark.shows('A.1')\ndef test_it(): pass\n"
PLUGINS = "-pno:cacheprovider", "-ptests.plugins.requirements"


def _write_table(pytester: pytest.Pytester, *statuses: str) -> None:
    rows = ", ".join(
        f'{{ id = "A.{number}", text = "Promise {number} holds.", status = "{status}" }}'
        for number, status in enumerate(statuses, start=1)
    )
    (pytester.path / "requirements.toml").write_text(f'[[group]]\nid = "A"\ntitle = "T"\nrows = [{rows}]\n')
    pytester.makeini("[pytest]\ntestpaths = .\nmarkers =\n    shows(*ids)\n")


def test_the_requirements_table_is_valid() -> None:
    assert len(load().rows()) > 150


def test_the_generated_pages_are_up_to_date() -> None:
    assert docs_pages.find_outdated() == []


def test_missing_and_outdated_pages_are_found(tmp_path: Path) -> None:
    (tmp_path / "docs/api").mkdir(parents=True)
    assert docs_pages.find_outdated(tmp_path) == list(docs_pages.PAGE_RENDERERS)
    for name, make in docs_pages.PAGE_RENDERERS.items():
        (tmp_path / name).write_text(make(), "utf-8")
    assert docs_pages.find_outdated(tmp_path) == []
    (tmp_path / "docs/compatibility.md").write_text("")
    assert docs_pages.find_outdated(tmp_path) == ["docs/compatibility.md"]


def test_a_claim_shown_by_a_passing_test_is_accepted(pytester: pytest.Pytester) -> None:
    _write_table(pytester, "works", "planned")
    pytester.makepyfile(PASSING)
    assert pytester.runpytest_inprocess(*PLUGINS).ret == pytest.ExitCode.OK


@pytest.mark.parametrize("status", ["works", "partly"])
def test_a_claim_without_a_test_fails_the_run(pytester: pytest.Pytester, status: str) -> None:
    _write_table(pytester, "works", status)
    path = pytester.path / "requirements.toml"
    path.write_text(path.read_text().replace('status = "partly"', 'status = "partly", note = "Half."'))
    pytester.makepyfile(PASSING)
    result = pytester.runpytest_inprocess(*PLUGINS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*no test shows it*", "A.2 *Promise 2 holds."])


@pytest.mark.parametrize("body", ["pytest.skip()", "pytest.xfail()"])
def test_a_test_that_did_not_pass_shows_nothing(pytester: pytest.Pytester, body: str) -> None:
    _write_table(pytester, "works")
    pytester.makepyfile(PASSING.replace("pass", body))
    assert pytester.runpytest_inprocess(*PLUGINS).ret == pytest.ExitCode.TESTS_FAILED


def test_a_selection_of_tests_is_not_checked_against_the_claims(pytester: pytest.Pytester) -> None:
    _write_table(pytester, "works", "works")
    path = pytester.makepyfile(PASSING)
    assert pytester.runpytest_inprocess(*PLUGINS, "-k", "it").ret == pytest.ExitCode.OK
    assert pytester.runpytest_inprocess(*PLUGINS, str(path)).ret == pytest.ExitCode.OK


def test_rows_that_rest_on_test_strings_say_that_no_model_was_heard() -> None:
    kinds: dict[str, set[str]] = {}
    for form, recordings in test_calls.RECORDINGS.items():
        for row in ("D.9", *test_calls.SHOWS.get(form, ())):
            kinds.setdefault(row, set()).update(recording.source.kind for recording in recordings)
    for family, thoughts in test_reasoning.RECORDINGS.items():
        for row in ("D.8", test_reasoning.ROWS.get(family, "D4.1")):
            kinds.setdefault(row, set()).update(recording.source.kind for recording in thoughts)
    without_model = {row for row, found in kinds.items() if found and "model output" not in found}
    assert without_model == {row.id for row in load().rows().values() if row.evidence == "format"}


def test_an_unknown_id_stops_the_collection(pytester: pytest.Pytester) -> None:
    _write_table(pytester, "planned")
    pytester.makepyfile(PASSING.replace("A.1", "Z.9"))
    result = pytester.runpytest_inprocess(*PLUGINS)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it: Z.9"])


def test_a_planned_row_that_tests_show_is_reported(pytester: pytest.Pytester) -> None:
    _write_table(pytester, "planned")
    pytester.makepyfile(PASSING)
    result = pytester.runpytest_inprocess(*PLUGINS)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*still planned*", "A.1 *Promise 1 holds."])


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ('{ id = "A.1", text = "T.", status = "planned" }, { id = "A.1", text = "T.", status = "planned" }', "2 times"),
        ('{ id = "B.1", text = "T.", status = "planned" }', "no id for group A"),
        ('{ id = "A.1", text = "T", status = "planned" }', "no sentence"),
        ('{ id = "A.1", text = "T.", status = "partly" }', "a note must say"),
        ('{ id = "A.1", text = "T.", status = "done" }', "status"),
        ('{ id = "A.1", text = "T.", status = "planned", owner = "x" }', "owner"),
    ],
)
def test_an_invalid_table_is_rejected(tmp_path: Path, rows: str, fault: str) -> None:
    path = tmp_path / "requirements.toml"
    path.write_text(f'[[group]]\nid = "A"\ntitle = "T"\nrows = [{rows}]\n')
    with pytest.raises(ValueError, match=fault):
        load(path)


@pytest.mark.parametrize(("required", "outcome"), [("", "skipped"), ("1", "errors")])
def test_a_missing_service_skips_the_test_or_fails_it_when_required(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, required: str, outcome: str
) -> None:
    monkeypatch.setenv("REQUIRE_SERVICES", required)
    monkeypatch.setitem(SERVICES, "chromium", lambda: None)
    pytester.makeini("[pytest]\nmarkers =\n    needs(*services)\n")
    pytester.makepyfile("import pytest\n\n@pytest.mark.needs('chromium')\ndef test_it(): pass\n")
    result = pytester.runpytest_inprocess("-pno:cacheprovider", "-ptests.plugins.services")
    result.assert_outcomes(**{outcome: 1})


def test_the_shown_option_writes_the_shown_ids_and_checks_no_claims(pytester: pytest.Pytester) -> None:
    _write_table(pytester, "works", "works")
    pytester.makepyfile(PASSING)
    assert pytester.runpytest_inprocess(*PLUGINS, "--shown=shown.json").ret == pytest.ExitCode.OK
    assert json.loads((pytester.path / "shown.json").read_text()) == ["A.1"]


@pytest.mark.parametrize("mark", [MODEL_MARK, MEASUREMENT_MARK])
@pytest.mark.parametrize("names_marker", [True, False])
def test_a_file_whose_tests_form_a_part_must_name_the_marker(
    pytester: pytest.Pytester, mark: str, names_marker: bool
) -> None:
    pytester.makeini(f"[pytest]\nmarkers =\n    {mark}\n")
    pytester.makepyfile(marks=f"import pytest\n\nMARK = pytest.mark.{mark}\n")
    pytester.makepyfile(f"from marks import MARK\n\n@MARK\ndef test_it(): pass  # {mark if names_marker else ''}\n")
    result = pytester.runpytest_inprocess("-pno:cacheprovider", "-ptests.plugins.selection")
    assert result.ret == (pytest.ExitCode.OK if names_marker else pytest.ExitCode.USAGE_ERROR)
