"""Optional packages are imported only when they are used.

The test counts imports by name, since the memory of a process depends on the machine; `make bench-peers` measures that.
"""

import re
from collections.abc import Iterator

import pytest

from tests.support.server_process import ServerProcess, run_server

LAZY_PACKAGES = {
    "asyncpg", "cryptography", "httpcore2", "httpx", "httpx2", "jinja2", "jsonschema_rs", "llguidance",
    "lxml", "mcp", "openai_harmony", "opentelemetry", "PIL", "pydantic", "pypdf", "redis", "trafilatura", "xllamacpp",
    "huggingface_hub", "openvino", "openvino_genai",
}  # fmt: skip
LAZY_MODULES = {
    "antiphon.engines.fake",
    "antiphon.engines.llamacpp.engine",
    "antiphon.engines.openvino.engine",
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
def verbose_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    """A server in front of another one, which logs its imports."""
    with run_server("--engine", "fake") as engine:
        monkeypatch.setenv("PYTHONVERBOSE", "1")
        with run_server("--engine", f"openai://127.0.0.1:{engine.port}") as server:
            yield server


def list_imports(server: ServerProcess) -> set[str]:
    return {name.decode() for name in re.findall(rb"^import '([\w.]+)' #", server.read_output(), re.MULTILINE)}


def test_a_server_with_an_http_engine_imports_optional_packages_only_when_used(
    verbose_server: ServerProcess,
) -> None:
    assert verbose_server.post(PLAIN)[0] == 200
    imports = list_imports(verbose_server)
    assert "antiphon.engines.http.adapters.openai" in imports
    assert {name.partition(".")[0] for name in imports} & LAZY_PACKAGES == set()
    assert imports & LAZY_MODULES == set()
    form = {"type": "json_schema", "name": "a", "schema": SCHEMA}
    assert verbose_server.post({**PLAIN, "text": {"format": form}})[0] == 200
    assert "jsonschema_rs" in list_imports(verbose_server)
