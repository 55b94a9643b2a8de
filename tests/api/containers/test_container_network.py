"""Network policies on the complete application: containers with an allow-list, and code of tools in them."""

from typing import Any

import pytest

from antiphon.core.deltas import Text
from tests.api.app import run_api
from tests.api.containers.container_api import ContainerApi
from tests.api.tools.test_code_interpreter import make_calls
from tests.egress.hosts import respond_with, run_host

pytestmark = pytest.mark.anyio
POLICY = {"type": "allowlist", "allowed_domains": ["files.localhost"]}
OPTIONS: dict[str, Any] = {"container_allowed_domains": ("*.localhost",), "allow_egress": ("files.localhost",)}
# localhost is what the environment of a container excludes from its proxy.
CODE = """
import os, urllib.request
os.environ["no_proxy"] = ""
try:
    text = urllib.request.urlopen({url!r}, timeout=10).read()
except OSError as error:
    text = str(error).encode()
open("answer", "wb").write(text)
"""


async def skip_without_network(api: ContainerApi) -> None:
    if (level := (await api.components.sandbox.status()).level) != "namespaces":
        pytest.skip(f"permission: containers have no network at the level {level}")


@pytest.mark.shows("E6.9")
async def test_a_container_with_an_allow_list_tells_it_and_reaches_it(sandbox_options: dict[str, Any]) -> None:
    async with run_api(**sandbox_options, **OPTIONS) as server, run_host(respond_with(b"hello")) as host:
        api = ContainerApi(server)
        await skip_without_network(api)
        container = await api.create(network_policy=POLICY)
        assert container["network_policy"] == POLICY
        assert (await api.get(f"containers/{container['id']}"))["network_policy"] == POLICY
        for name, expected in (("files", b"hello"), ("other", b"other.localhost is not among the allowed domains")):
            code = CODE.format(url=f"http://{name}.localhost:{host.port}/")
            (file,) = await api.run(container["id"], code)
            assert expected in await api.read(container["id"], file.file_id)
        assert host.connects == 1


@pytest.mark.shows("E6.9")
async def test_code_of_a_response_reaches_the_hosts_that_the_tool_declares(sandbox_options: dict[str, Any]) -> None:
    async with run_api(**sandbox_options, **OPTIONS) as server, run_host(respond_with(b"hello")) as host:
        await skip_without_network(ContainerApi(server))
        code = CODE.format(url=f"http://files.localhost:{host.port}/") + "text"
        tool = {"type": "code_interpreter", "container": {"type": "auto", "network_policy": POLICY}}
        body = {"model": "fake", "input": "hi", "tools": [tool], "include": ["code_interpreter_call.outputs"]}
        server.engine.says(*make_calls(code))
        server.engine.says(Text("Done."))
        response = await server.post_ok("responses", body)
        assert response["output"][0]["outputs"] == [{"type": "logs", "logs": "b'hello'\n"}]
        assert response["tools"] == [tool]
        other = {**tool, "container": {"type": "auto", "network_policy": {**POLICY, "allowed_domains": ["x.example"]}}}
        answer = await server.post("responses", {**body, "tools": [other]})
        assert answer.status == 400
        assert answer.error["param"] == "tools[0].container.network_policy.allowed_domains[0]"


async def test_a_domain_beyond_the_operator_s_and_secrets_are_refused_by_name(sandbox_options: dict[str, Any]) -> None:
    async with run_api(**sandbox_options, **OPTIONS) as server:
        api = ContainerApi(server)
        cases: list[tuple[dict[str, Any], str, str]] = [
            ({"allowed_domains": ["files.localhost", "example.com"]}, "invalid_value", "allowed_domains[1]"),
            ({"allowed_domains": ["a"] * 101}, "invalid_value", "allowed_domains"),
            ({}, "missing_required_parameter", "allowed_domains"),
            (
                {**POLICY, "domain_secrets": [{"domain": "files.localhost", "name": "KEY", "value": "v"}]},
                "unsupported_parameter",
                "domain_secrets",
            ),
        ]
        for fields, code, field in cases:
            body = {"name": "box", "network_policy": {"type": "allowlist", **fields}}
            assert await api.refuse("POST", "containers", body) == (400, code, f"network_policy.{field}")
        assert (await api.get("containers"))["data"] == []
