"""Checks the tests against requirements.toml: a requirement that claims to work needs a test that ran and passed.

A test names the requirements it shows with `@pytest.mark.shows("A.1", …)`, or with `shows` in a contract suite. An
unknown id stops the collection. The claims are checked after a full run only, since a selection proves nothing; with
`--shown FILE` the shown ids are written to that file instead, and `tools/parallel_tests.py` checks them over all parts.
"""

import json
from pathlib import Path

import pytest

from tools.requirements import Row, find_proved_plans, find_unproved, load


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shown", metavar="FILE", help="write the ids of the shown requirements to FILE and do not check the claims"
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.rootpath / "requirements.toml"
    try:
        rows = load(path).rows()
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"cannot read the requirements: {error}")
    shown = config.getoption("shown")
    ledger = Ledger(rows, full=not shown and _is_full_run(config), file=Path(shown) if shown else None)
    config.pluginmanager.register(ledger, "requirements-ledger")


def _is_full_run(config: pytest.Config) -> bool:
    narrowing = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "stepwise", "collectonly")
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return everything and not any(config.getoption(name, None) for name in narrowing)


class Ledger:
    """The requirements that each test is marked with, and those that a passed test has shown."""

    def __init__(self, rows: dict[str, Row], *, full: bool, file: Path | None = None) -> None:
        self.rows = rows
        self.full = full
        self.file = file
        self.ids_by_test: dict[str, set[str]] = {}
        self.shown: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            marked = {name for marker in item.iter_markers("shows") for name in marker.args}
            self.ids_by_test[item.nodeid] = marked.union(getattr(getattr(item, "function", None), "shown_rows", ()))
        unknown = [
            f"{node}: {name}" for node, ids in self.ids_by_test.items() for name in sorted(ids - self.rows.keys())
        ]
        if unknown:
            raise pytest.UsageError("tests are marked with requirements that do not exist:\n  " + "\n  ".join(unknown))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.outcome == "passed" and not hasattr(report, "wasxfail"):
            self.shown |= self.ids_by_test.get(report.nodeid, set())

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.file is not None:
            self.file.write_text(json.dumps(sorted(self.shown)))
        if self.full and self.find_unproved() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.full:
            return
        self._print_rows(
            terminalreporter, "requirements that claim to work, but no test shows it", self.find_unproved(), red=True
        )
        self._print_rows(
            terminalreporter, "requirements still planned, although tests show them", self.find_ripe(), red=False
        )

    def find_unproved(self) -> list[Row]:
        return find_unproved(self.rows.values(), self.shown)

    def find_ripe(self) -> list[Row]:
        return find_proved_plans(self.rows.values(), self.shown)

    @staticmethod
    def _print_rows(reporter: pytest.TerminalReporter, title: str, rows: list[Row], *, red: bool) -> None:
        if rows:
            reporter.section(title, red=red)
        for row in rows:
            reporter.write_line(f"{row.id:6} {row.text}")
