"""docs/matrix.md is made from results of tests: every cell has a test with its mark, and every mark has a result."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import DOCS, TESTS
from tools.client_matrix import FEATURES, FailedTests, Use, collect, load, render_page

TESTED = """
import pytest

@pytest.mark.uses("codex", "streaming", "tools")
def test_it(): pass

@pytest.mark.real_model
@pytest.mark.uses("codex", "images")
@pytest.mark.parametrize("number", [1, 2])
def test_embedded(number): pass

@pytest.mark.uses("llm", "files")
def test_skipped(): pytest.skip()
"""


def run_tests(pytester: pytest.Pytester, text: str) -> Path:
    """Run tests and return the JUnit file."""
    pytester.makeini("[pytest]\nmarkers =\n    uses(client, *features)\n    real_model\n")
    pytester.makepyfile(test_clients=text)
    file = pytester.path / "results.xml"
    pytester.runpytest_inprocess("-pno:cacheprovider", "-ptests.plugins.client_matrix", f"--junitxml={file}")
    return file


def list_marks() -> Iterator[tuple[str, str, str]]:
    """Yield test, client and feature of every mark in the tests."""
    for path in (TESTS / "clients").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for call in [one for one in node.decorator_list if isinstance(one, ast.Call)]:
                if ast.unparse(call.func) == "pytest.mark.uses":
                    client, *features = map(ast.literal_eval, call.args)
                    yield from ((f"{path.name}::{node.name}", client, feature) for feature in features)


def test_marks_name_clients_that_have_a_page_and_features_of_the_table() -> None:
    for test, client, feature in list_marks():
        assert (DOCS / "clients" / f"{client}.md").exists(), test
        assert feature in FEATURES, test


@pytest.mark.shows("I1.93")
def test_every_result_has_a_mark_and_every_mark_has_a_result() -> None:
    """After a change of marks, `make matrix` writes the results again."""
    results = {
        (use.test.rpartition("/")[2], client, feature)
        for client, row in load().clients.items()
        for feature, uses in row.items()
        for use in uses
        if not use.test.startswith("tests/real/")  # these import the tests of others
    }
    assert results == {*list_marks()}


@pytest.mark.shows("I1.93")
def test_passed_tests_alone_are_results_and_name_their_engine(pytester: pytest.Pytester) -> None:
    results = collect([run_tests(pytester, TESTED)])
    first, second = Use("test_clients.py::test_it", "fake"), Use("test_clients.py::test_embedded", "llamacpp")
    assert results.clients == {"codex": {"streaming": [first], "tools": [first], "images": [second]}}


def test_a_failed_run_has_no_results(pytester: pytest.Pytester) -> None:
    file = run_tests(pytester, TESTED + "\ndef test_wrong(): assert False\n")
    with pytest.raises(FailedTests, match="test_wrong"):
        collect([file])


def test_the_page_has_a_row_for_each_client_and_names_all_tests() -> None:
    page, results = render_page(), load()
    for client, row in results.clients.items():
        assert f"| [{client}](clients/{client}.md) |" in page
        assert all(f"`{use.test}`, {use.engine}" in page for uses in row.values() for use in uses)
