"""Writes which features of which clients and engines passed tests have shown, and renders docs/matrix.md from it.

`python -m tools.client_matrix FILE…` reads JUnit files of pytest and writes tools/client_matrix.json; `make matrix`
runs the tests before. A cell of the page names its test; there is no other way to fill one.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import msgspec
from msgspec import Struct

from tools.requirements import ROOT

RESULTS = ROOT / "tools" / "client_matrix.json"
USES, CONTRACT = "uses", "contract"  # names of properties in JUnit files
FEATURES = (
    "answers",
    "streaming",
    "tools",
    "structured output",
    "stored state",
    "reasoning",
    "images",
    "files",
    "hosted tools",
    "background",
    "WebSocket",
)
EMBEDDED = {"fake", "llamacpp", "openvino"}  # engines without a server, which are therefore never a stub
Outcome = Literal["not applicable", "passed"]  # the second one wins
_WHOLE = "whole"  # the engine itself was run
_STUB = "stub"
_ABSENT, _NOT_APPLICABLE = "not tested", "–"


class Use(Struct, frozen=True, order=True):
    """A test that has passed, and the engine that it ran with."""

    test: str
    engine: str


class Results(Struct, frozen=True, kw_only=True):
    clients: dict[str, dict[str, list[Use]]]  # by client and feature
    engines: dict[str, dict[str, Outcome]]  # by configuration of the contract suite and test


class FailedTests(Exception):
    """Tests of a run failed: their results are not written."""


def collect(files: Iterable[Path]) -> Results:
    """Collect the results of JUnit files. Raises FailedTests."""
    clients: dict[str, dict[str, set[Use]]] = {}
    engines: dict[str, dict[str, set[Outcome]]] = {}
    failed = []
    for case in (case for file in files for case in ElementTree.parse(file).iter("testcase")):
        outcome = _read_outcome(case)
        if outcome == "failed":
            failed.append(f"{case.get('classname')}.{case.get('name')}")
        for name, value in _read_properties(case):
            if name == USES and outcome == "passed":
                for feature in value["features"]:
                    uses = clients.setdefault(value["client"], {}).setdefault(feature, set())
                    uses.add(Use(value["test"], value["engine"]))
            elif name == CONTRACT:
                tests = engines.setdefault(value["engine"], {})
                if outcome == "passed" or outcome == "not applicable":
                    tests.setdefault(value["test"].rpartition("::")[2], set()).add(outcome)
    if failed:
        raise FailedTests("\n".join(failed))
    return Results(
        clients={client: {feature: sorted(uses) for feature, uses in row.items()} for client, row in clients.items()},
        engines={engine: {test: max(outcomes) for test, outcomes in row.items()} for engine, row in engines.items()},
    )


def _read_outcome(case: ElementTree.Element) -> Outcome | Literal["failed", "not run"]:
    """Return the outcome of a test; why one was skipped is the beginning of its reason (tests/plugins/services.py)."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "not applicable" if skipped.get("message", "").startswith("not applicable:") else "not run"


def _read_properties(case: ElementTree.Element) -> Iterator[tuple[str, Any]]:
    for one in case.iter("property"):
        if one.get("name") in (USES, CONTRACT):
            yield one.get("name", ""), json.loads(one.get("value", ""))


def load() -> Results:
    return msgspec.json.decode(RESULTS.read_bytes(), type=Results)


def write(results: Results) -> None:
    content = msgspec.json.encode(results, order="deterministic")
    RESULTS.write_bytes(msgspec.json.format(content, indent=1) + b"\n")


_INTRODUCTION = """\
<!-- Generated from tools/client_matrix.json, which `make matrix` writes, by `make docs`. Do not edit. -->

# Clients, features, engines

These tables are made from the results of tests, without further entries: a number is that of a [test](#tests) that
has passed, and a cell without one was not tested, which says nothing about whether it works. What each test checks is
in its code; [Compatibility](compatibility.md) lists every promise with its state.

## Clients

The releases are those of [Clients](clients/index.md). Hosted tools are those that the server runs: MCP, code, files.
"""

_ENGINES = """\
## Engines

The [contract](testing.md#contracts) of engines, run with every kind of engine. *whole*: the engine itself was run;
*stub*: a stand-in that follows its documentation; –: the engine does not have what is tested. Fields that each engine
supports are in [Engines](engines.md).
"""


def render_page() -> str:
    """Render docs/matrix.md."""
    results = load()
    uses = [use for row in results.clients.values() for cell in row.values() for use in cell]
    numbers = {use: number for number, use in enumerate(sorted(set(uses)), 1)}
    lines = [_INTRODUCTION, *_render_clients(results, numbers), "", _ENGINES, *_render_engines(results)]
    lines += ["", "## Tests", "", *(f"{number}. `{use.test}`, {use.engine}" for use, number in numbers.items())]
    return "\n".join(lines) + "\n"


def _render_clients(results: Results, numbers: dict[Use, int]) -> Iterator[str]:
    yield _render_row("client", FEATURES)
    yield _render_row("---", ["---"] * len(FEATURES))
    for client, row in sorted(results.clients.items()):
        cells = (", ".join(str(numbers[use]) for use in row.get(feature, ())) for feature in FEATURES)
        yield _render_row(f"[{client}](clients/{client}.md)", [cell or _ABSENT for cell in cells])


def _render_engines(results: Results) -> Iterator[str]:
    kinds = sorted({_find_kind(name) for name in results.engines})
    tests = list(dict.fromkeys(test for row in results.engines.values() for test in row))
    yield _render_row("contract", kinds)
    yield _render_row("---", ["---"] * len(kinds))
    for test in sorted(tests):
        sentence = test.removeprefix("test_").replace("_", " ")
        yield _render_row(sentence, [_render_outcome(results, kind, test) for kind in kinds])


def _render_outcome(results: Results, kind: str, test: str) -> str:
    """Return how a kind of engine passed a test: the strongest way of all of its configurations."""
    names = [name for name, row in results.engines.items() if _find_kind(name) == kind and test in row]
    passed = [name for name in names if results.engines[name][test] == "passed"]
    if any(", real" in name or kind in EMBEDDED for name in passed):
        return _WHOLE
    return _STUB if passed else _NOT_APPLICABLE if names else _ABSENT


def _find_kind(name: str) -> str:
    """Return the engine of a configuration such as `fake-text` or `vllm, token prompts`."""
    kind = name.partition(",")[0]
    return "fake" if kind.startswith("fake-") else kind


def _render_row(first: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"


def main(arguments: list[str]) -> int:
    try:
        write(collect(map(Path, arguments)))
    except FailedTests as error:
        print(f"These tests failed, so nothing is written:\n{error}", file=sys.stderr)
        return 1
    print(f"wrote {RESULTS.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
