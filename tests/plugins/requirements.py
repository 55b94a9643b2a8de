"""Holds the tests to requirements.toml: a row that claims to work needs a test that ran and passed.

A test names the rows it shows with `@pytest.mark.shows("A.1", …)`. An unknown id stops the
collection. The claims are judged after a full run only, since a selection proves nothing; with `--shown FILE` what was
shown is written there, and whoever runs the rest judges.
"""

import json
from pathlib import Path

import pytest

from tools.requirements import Row, load, ripe, unproved


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shown", metavar="FILE", help="write the requirements that were shown there, and judge nothing")


def pytest_configure(config: pytest.Config) -> None:
    path = config.rootpath / "requirements.toml"
    try:
        rows = load(path).rows()
    except (OSError, ValueError) as error:
        raise pytest.UsageError(f"cannot read the requirements: {error}")
    shown = config.getoption("shown")
    ledger = Ledger(rows, full=not shown and _runs_everything(config), file=Path(shown) if shown else None)
    config.pluginmanager.register(ledger, "requirements-ledger")


def _runs_everything(config: pytest.Config) -> bool:
    narrowing = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "stepwise", "collectonly")
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return everything and not any(config.getoption(name, None) for name in narrowing)


class Ledger:
    """Which rows the tests carry, and which of them a passed test has shown."""

    def __init__(self, rows: dict[str, Row], *, full: bool, file: Path | None = None) -> None:
        self.rows = rows
        self.full = full
        self.file = file
        self.carried: dict[str, set[str]] = {}
        self.shown: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            self.carried[item.nodeid] = {name for mark in item.iter_markers("shows") for name in mark.args}
        unknown = [f"{node}: {name}" for node, ids in self.carried.items() for name in sorted(ids - self.rows.keys())]
        if unknown:
            raise pytest.UsageError("tests show requirements that do not exist:\n  " + "\n  ".join(unknown))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.outcome == "passed" and not hasattr(report, "wasxfail"):
            self.shown |= self.carried.get(report.nodeid, set())

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.file is not None:
            self.file.write_text(json.dumps(sorted(self.shown)))
        if self.full and self.unproved() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.full:
            return
        self._print(
            terminalreporter, "requirements that claim to work, and no test shows it", self.unproved(), red=True
        )
        self._print(terminalreporter, "requirements still planned, although tests show them", self.ripe(), red=False)

    def unproved(self) -> list[Row]:
        return unproved(self.rows.values(), self.shown)

    def ripe(self) -> list[Row]:
        return ripe(self.rows.values(), self.shown)

    @staticmethod
    def _print(reporter: pytest.TerminalReporter, title: str, rows: list[Row], *, red: bool) -> None:
        if rows:
            reporter.section(title, red=red)
        for row in rows:
            reporter.write_line(f"{row.id:6} {row.text}")
