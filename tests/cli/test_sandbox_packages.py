"""`antiphon sandbox-packages` makes an environment, or says in one sentence why it cannot. What is in it is tested by
`tests/sandbox`.
"""

from pathlib import Path

import pytest
from click.testing import CliRunner

from antiphon.cli.sandbox_packages import sandbox_packages
from antiphon.errors import StartupError


@pytest.mark.slow
def test_the_environment_is_made_before_packages_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    result = CliRunner().invoke(sandbox_packages, [str(tmp_path / "made")])
    assert isinstance(result.exception, StartupError)
    assert str(result.exception).startswith(f"pip could not install the packages in {tmp_path}/made")
    assert (tmp_path / "made/bin/python").exists()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(sandbox_packages, [str(tmp_path / "file" / "below")])
    assert isinstance(result.exception, StartupError)
    assert "cannot be made" in str(result.exception)
