"""The lock files: complete, hashed, in agreement with each other, and bound to no index."""

import re
import tomllib

import pytest

from tests.support.paths import ROOT

PIN = re.compile(r"^([a-z0-9.-]+)==(\S+)( ; .+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def _text(name: str) -> str:
    return (ROOT / "requirements" / name).read_text("utf-8")


def _pins(name: str) -> dict[str, str]:
    return {match[1]: match[2] for match in PIN.finditer(_text(name))}


def _names(lines: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", line)[0] for line in lines}


@pytest.mark.parametrize("name", ["run.lock", "dev.lock", "image.lock", "clients.lock", "litellm.lock"])
def test_a_lock_holds_hashed_pins_and_nothing_else(name: str) -> None:
    rest = PIN.sub("", _text(name))
    assert [line for line in rest.splitlines() if not line.lstrip().startswith("#")] == []
    assert not re.search(r"https?://|file:|--(extra-)?index|--find-links", _text(name))


def test_what_runs_is_developed_with() -> None:
    assert _pins("run.lock").items() <= _pins("dev.lock").items()
    assert _pins("image.lock").items() <= _pins("dev.lock").items()


def test_every_declared_dependency_is_pinned() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    groups = pyproject["dependency-groups"]
    wanted = _names(pyproject["project"]["dependencies"]) | _names(groups["build"])
    developed = _names([line for line in groups["dev"] if isinstance(line, str)])
    extras = [line for lines in pyproject["project"]["optional-dependencies"].values() for line in lines]
    assert wanted <= _pins("run.lock").keys()
    assert wanted | developed | _names(extras) <= _pins("dev.lock").keys()


@pytest.mark.parametrize("group", ["clients", "litellm"])
def test_every_client_is_pinned(group: str) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert _names(pyproject["dependency-groups"][group]) <= _pins(f"{group}.lock").keys()
