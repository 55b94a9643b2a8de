"""Deprecated names of settings work as before, and their use is reported, wherever they were set."""

import re
import tomllib
from pathlib import Path

import pytest

from antiphon.config.deprecations import DEPRECATIONS
from antiphon.config.settings import settings
from antiphon.config.sources import load, survey
from tests.cli.process import run_antiphon
from tests.support.paths import ROOT

SENTENCE = "{} is deprecated since 0.2 and is removed in 0.4: use shed_memory."


@pytest.mark.shows("I4.6")
def test_a_deprecated_flag_warns_and_works(tmp_path: Path) -> None:
    for flags in (("--max-memory", "1000"), ("--max-memory=1000",)):
        ran = run_antiphon(tmp_path, "doctor", "--engine", "fake", "--port", "0", *flags)
        assert SENTENCE.format("--max-memory") in ran.stdout
    ran = run_antiphon(tmp_path, "serve", "--max-memory", "1000", "--engine", "no-such-engine")
    assert ran.stderr.startswith(f"antiphon: {SENTENCE.format('--max-memory')}\n")


@pytest.mark.shows("I4.6")
def test_a_deprecated_variable_or_key_warns_and_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text("max_memory = 1000")
    for origin in (f"max_memory in {file}", "ANTIPHON_MAX_MEMORY"):
        warnings: list[str] = []
        flags = {"config": str(file)} if "toml" in origin else {}
        assert load(flags, warnings.append).shed.memory == 1000
        assert warnings == [SENTENCE.format(origin)]
        monkeypatch.setenv("ANTIPHON_MAX_MEMORY", "1000")


def test_the_new_name_does_not_warn(tmp_path: Path) -> None:
    assert survey({"shed_memory": "1000"}).deprecations == []
    ran = run_antiphon(tmp_path, "serve", "--shed-memory", "1000", "--engine", "no-such-engine")
    assert "deprecated" not in ran.stderr


def test_a_deprecation_names_its_remedy_and_ends_two_minor_versions_later() -> None:
    """It fails when the version is reached in which a name has to be removed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    current = [int(part) for part in project["version"].split(".")]
    names = {name for row in settings().values() for name in row.names}
    for name, deprecation in DEPRECATIONS.items():
        since, removed = ([int(part) for part in text.split(".")] for text in (deprecation.since, deprecation.removed))
        assert name in names
        assert since <= current < removed, f"{name} has to be removed"
        assert removed >= [since[0], since[1] + 2]
        assert re.fullmatch(r"[a-z].*[^.]", deprecation.remedy)
