"""A server carries along only what it needs: packages for what others are asked for are loaded when that is asked for.

Counted by name, since what a process weighs depends on the machine; `make bench-peers` weighs it.
"""

import re
from collections.abc import Iterator

import pytest

from tests.support.server_process import Live, serving

PACKAGES = {
    "asyncpg", "cryptography", "httpcore2", "httpx", "httpx2", "jinja2", "jsonschema_rs", "llguidance",
    "lxml", "mcp", "openai_harmony", "opentelemetry", "PIL", "pydantic", "pypdf", "redis", "trafilatura", "xllamacpp",
}  # fmt: skip
OURS = {
    "antiphon.engines.fake",
    "antiphon.engines.llamacpp.engine",
    "antiphon.observe.tracing",
    "antiphon.protocol.schemas.json_schema_drafts",
    "antiphon.service.model_io.raw",
    "antiphon.stores.postgres",
    "antiphon.stores.live.redis",
    "antiphon.tools.mcp.session",
}
PLAIN = {"model": "fake", "input": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """A server over another one, which says what it imports."""
    with serving("--engine", "fake") as engine:
        monkeypatch.setenv("PYTHONVERBOSE", "1")
        with serving("--engine", f"openai://127.0.0.1:{engine.port}") as live:
            yield live


def imported(live: Live) -> set[str]:
    return {name.decode() for name in re.findall(rb"^import '([\w.]+)' #", live.output(), re.MULTILINE)}


def test_a_server_before_an_engine_loads_nothing_that_only_others_need_and_what_is_asked_for_later(
    telling: Live,
) -> None:
    assert telling.post(PLAIN)[0] == 200
    known = imported(telling)
    assert "antiphon.engines.http.adapters.openai" in known
    assert {name.partition(".")[0] for name in known} & PACKAGES == set()
    assert known & OURS == set()
    form = {"type": "json_schema", "name": "a", "schema": SCHEMA}
    assert telling.post({**PLAIN, "text": {"format": form}})[0] == 200
    assert "jsonschema_rs" in imported(telling)
