"""Measures which lines of the source a test process executes, if the environment names a file for the result.

It has to be the first plugin: only modules that are imported after this one are measured. The source is where Python
would import it from, which may be another checkout.
"""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tools.coverage import VARIABLE


class LineCoverage:
    """Instruments modules of the source as they are imported."""

    def __init__(self, file: Path) -> None:
        import slipcover  # type: ignore[import-untyped]  # imported here, since it is not cheap

        package = find_spec("antiphon")
        assert package is not None
        self._source = Path(str(package.origin)).resolve().parents[1]
        self._file = file
        self._tracer = slipcover.Slipcover()
        slipcover.ImportManager(self._tracer, slipcover.FileMatcher(sources=[self._source])).__enter__()

    def write(self) -> None:
        """Write executed and missing lines by file."""
        files = self._tracer.get_coverage()["files"]
        report = {
            Path(name).resolve().relative_to(self._source).as_posix(): [lines["executed_lines"], lines["missing_lines"]]
            for name, lines in files.items()
        }
        self._file.write_text(json.dumps(report))


_coverage = LineCoverage(Path(os.environ.pop(VARIABLE))) if VARIABLE in os.environ else None
# Factor by which instrumented code may be slower, for tests that bound CPU time (tests/support/cpu.py).
OVERHEAD = 3.0 if _coverage is not None else 1.0


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    if _coverage is not None:
        _coverage.write()
