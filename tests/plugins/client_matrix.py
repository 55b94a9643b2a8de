"""Names client, features and engine of a test in JUnit files, from which tools/client_matrix.py makes docs/matrix.md.

A test names what a client does in it with `@pytest.mark.uses("codex", "streaming", "tools")`; the contract suite of
engines names the engine. The test run itself does not depend on these names.
"""

import json
from typing import Any

import pytest

from tools.client_matrix import CONTRACT, USES
from tools.parallel_tests import MODEL_MARK


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        test = item.nodeid.partition("[")[0]
        for marker in item.iter_markers("uses"):
            client, *features = marker.args
            _add(item, USES, client=client, features=features, engine=_find_engine(item, params), test=test)
        if test.startswith("tests/contracts/test_engine.py::TestEngine::"):
            _add(item, CONTRACT, engine=params["engine"], test=test)


def _add(item: pytest.Item, name: str, **values: Any) -> None:
    item.user_properties.append((name, json.dumps(values)))


def _find_engine(item: pytest.Item, params: dict[str, Any]) -> str:
    """Return the engine behind the server: a real one of tests/real, the embedded model, or the fake engine."""
    if "engine_url" in params:
        return f"{params['engine_url']}, {params['level']} level" if "level" in params else str(params["engine_url"])
    return "llamacpp" if any(item.iter_markers(MODEL_MARK)) else "fake"
