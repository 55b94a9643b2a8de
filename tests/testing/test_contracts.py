"""The contracts as packages of others use them: the package in examples/ is built, installed and tested.

Covers `testing/contracts.py` and `testing/suite.py`.

The contracts run against our own plug-ins in `tests/contracts`.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from antiphon.testing.suite import collect_tests, shows
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "antiphon-echo"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that have the example installed, in a folder of its own and without a network."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--no-cache-dir", "--target", folder, EXAMPLE], check=True, timeout=200)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")])}


@pytest.mark.shows("I4.1", "I4.2", "I4.3")
def test_the_tests_of_the_example_package_pass(environment: dict[str, str], tmp_path: Path) -> None:
    """Warnings are errors, as a package of others may demand it."""
    command = [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "--strict-markers", "-rA"]
    ran = subprocess.run(
        [*command, "--rootdir", EXAMPLE, EXAMPLE / "tests"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("\nPASSED ") > 30
    assert "test_the_server_repeats_what_a_client_says" in ran.stdout


@pytest.mark.shows("I4.2")
def test_an_engine_that_breaks_its_contract_fails_the_suite(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    pytester.makepyfile("""
        import pytest
        from msgspec.structs import replace
        from antiphon.engines.fake.engine import FakeEngine
        from antiphon.config import Config
        from antiphon.engines.factory import build_engine
        from antiphon.testing.contracts import EngineContract

        class Uncounted(FakeEngine):
            async def generate(self, request):
                async for chunks in super().generate(request):
                    yield [replace(chunk, counts=None) for chunk in chunks]

        class TestUncounted(EngineContract):
            @pytest.fixture(scope="class")
            @classmethod
            async def engine(cls):
                engine = build_engine(Config.from_settings(engine="fake"))
                engine.__class__ = Uncounted
                await engine.open()
                yield engine
                await engine.close()
    """)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-k", "last_chunk or has_a_vector or truncated")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["*assert None is not None*"])  # rewritten: the value is shown


def test_two_tests_of_one_name_cannot_be_collected() -> None:
    module = ModuleType("twice")
    module.test_it = shows("A.1")(lambda: None)  # type: ignore[attr-defined]
    assert module.test_it.shown_rows == ("A.1",)

    class Suite:
        def test_it(self) -> None: ...

    with pytest.raises(AssertionError, match="twice has a second test_it"):
        collect_tests(module)(Suite)


def test_a_server_runs_without_pytest(environment: dict[str, str]) -> None:
    code = "import sys; from antiphon.testing import server; print(server.__name__, 'pytest' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    assert (ran.stdout, ran.stderr) == ("server False\n", "")
