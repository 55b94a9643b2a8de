"""Every drill finds the fault that is planted for it. `make drills ARGS=--planted` runs all of them, those that are too
expensive for every test run too.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from drills.disk.bad_disk import can_trace
from drills.planted.faults import FAULTS, PlantedFault, find_faults
from drills.planted.runner import run_with_fault
from drills.registry import build_drills
from tests.support.paths import DOCS

# Drills that find their faults with little work: each takes two to four seconds of CPU time.
CHEAP = (
    *("tenants-sqlite", "bombs", "bombs-schemas", "egress", "mcp", "forgery", "upstream", "nth-failure"),
    *("replays-sqlite", "idempotency-sqlite", "zombie-sqlite", "kill9-sqlite", "overload", "noisy", "engine-kills"),
    *("disconnects", "files-sqlite", "sandbox"),
)


def _read_module(fault: PlantedFault) -> str:
    spec = find_spec(fault.module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text()


def test_every_drill_has_a_fault() -> None:
    assert {drill for fault in FAULTS.values() for drill in fault.drills} == {*build_drills("full")}


def test_every_drill_on_the_page_about_security_exists() -> None:
    commands = re.findall(r'make drills ARGS=(?:"([^"]+)"|([\w-]+))', (DOCS / "security.md").read_text("utf-8"))
    named = {name for both in commands for name in "".join(both).split()}
    assert named
    assert named <= build_drills("quick").keys()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_applies_to_the_current_source(name: str) -> None:
    fault = FAULTS[name]
    source = _read_module(fault)
    changed = fault.apply(source)
    compile(changed, fault.module, "exec")
    assert changed != source


def test_a_fault_that_does_not_apply_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not apply"):
        FAULTS["commits are not synced"].apply("the server has changed")


@pytest.mark.slow
@pytest.mark.parametrize(("drill", "fault"), [(drill, fault) for drill in CHEAP for fault in find_faults(drill)])
def test_a_drill_finds_its_planted_fault(drill: str, fault: PlantedFault) -> None:
    run = run_with_fault(drill, fault)
    assert run.is_found, run.output


@pytest.mark.slow
@pytest.mark.needs("strace")
@pytest.mark.skipif(not can_trace(), reason="this user may not trace processes")
def test_the_disk_drill_finds_commits_that_are_not_synced() -> None:
    run = run_with_fault("disk", FAULTS["commits are not synced"])
    assert run.is_found, run.output
