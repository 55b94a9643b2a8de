"""The lock files are complete and hashed, agree with each other, and name no package index."""

import re
import tomllib

import pytest

from tests.support.paths import ROOT

PIN = re.compile(r"^([a-z0-9.-]+)==(\S+)( ; .+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def _read_lock(name: str) -> str:
    folder = "src/antiphon/sandbox" if name == "packages.lock" else "requirements"  # the wheel has it
    return (ROOT / folder / name).read_text("utf-8")


def _parse_pins(name: str) -> dict[str, str]:
    return {match[1]: match[2] for match in PIN.finditer(_read_lock(name))}


def _parse_names(lines: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", line)[0] for line in lines}


@pytest.mark.parametrize(
    "name",
    [
        *("run.lock", "dev.lock", "image.lock", "clients.lock", "litellm.lock", "openvino.lock", "packages.lock"),
        "zensical.lock",
    ],
)
def test_a_lock_file_contains_only_hashed_pins(name: str) -> None:
    remainder = PIN.sub("", _read_lock(name))
    assert [line for line in remainder.splitlines() if not line.lstrip().startswith("#")] == []
    assert not re.search(r"https?://|file:|--(extra-)?index|--find-links", _read_lock(name))


def test_the_dev_lock_contains_the_pins_of_the_run_and_image_locks() -> None:
    assert _parse_pins("run.lock").items() <= _parse_pins("dev.lock").items()
    assert _parse_pins("image.lock").items() <= _parse_pins("dev.lock").items()


def test_every_declared_dependency_is_pinned() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    groups = pyproject["dependency-groups"]
    runtime = _parse_names(pyproject["project"]["dependencies"]) | _parse_names(groups["build"])
    development = _parse_names([line for line in groups["dev"] if isinstance(line, str)])
    optional = pyproject["project"]["optional-dependencies"]
    assert _parse_names(optional.pop("openvino")) <= _parse_pins("openvino.lock").keys()  # too large for the others
    extras = [line for extra, lines in optional.items() if extra != "all" for line in lines]  # it names the others
    assert runtime <= _parse_pins("run.lock").keys()
    assert runtime | development | _parse_names(extras) <= _parse_pins("dev.lock").keys()


@pytest.mark.parametrize(
    ("group", "lock"),
    [
        ("clients", "clients.lock"),
        ("litellm", "litellm.lock"),
        ("sandbox", "packages.lock"),
        ("zensical", "zensical.lock"),
    ],
)
def test_every_package_of_a_group_is_pinned(group: str, lock: str) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert _parse_names(pyproject["dependency-groups"][group]) <= _parse_pins(lock).keys()
