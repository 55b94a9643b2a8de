"""Tests /openapi.json and /docs: every route is described, and recorded client requests match the schemas.

Covers `transport/endpoints/openapi_schemas.py`.
"""

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from antiphon.config import Config
from antiphon.engines.factory import build_engine
from antiphon.limits import Limits
from antiphon.protocol.types.request import CreateResponse
from antiphon.transport.endpoints import openapi
from antiphon.transport.endpoints.openapi import describe
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.routing import Route
from antiphon.wiring import build_app
from tests.plugins.services import find_chromium
from tests.protocol.decoding.recorded_requests import iter_create_requests
from tests.support.asgi_client import call
from tests.transport.edge_process import run_server
from tests.transport.minimal_app import MinimalApp

pytestmark = pytest.mark.anyio

OPERATION_FIELDS = {
    "operationId", "summary", "description", "tags", "parameters", "requestBody", "responses", "security",
}  # fmt: skip


async def fetch_document() -> Any:
    """Fetch the document of the complete application."""
    config = Config.from_settings(engine="fake", store="memory")
    answer = await call(build_app(config, build_engine(config)), "GET", "/openapi.json")
    assert answer.status == 200
    return answer.json()


def find_references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from find_references(value)
    elif isinstance(part, list):
        for value in part:
            yield from find_references(value)


def resolve_reference(document: Any, reference: str) -> Any:
    assert reference.startswith("#/"), reference
    for key in reference[2:].split("/"):
        document = document[key]
    return document


@pytest.mark.shows("H.11")
async def test_every_route_is_described() -> None:
    edge = MinimalApp(Config())
    document = (await call(edge.app, "GET", "/openapi.json")).json()
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(route.method, route.path.replace("...}", "}")) for route in edge.routes}


async def test_the_document_is_openapi_3_1_and_every_reference_resolves() -> None:
    document = await fetch_document()
    assert re.fullmatch(r"3\.1\.\d+", document["openapi"])
    assert set(document["info"]) >= {"title", "version"}
    assert all(isinstance(resolve_reference(document, one), dict) for one in find_references(document))
    ids = []
    for path, methods in document["paths"].items():
        assert path.startswith("/")
        for operation in methods.values():
            assert set(operation) <= OPERATION_FIELDS
            assert operation["summary"], f"the endpoint of {path} has no docstring"
            ids.append(operation["operationId"])
            named = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
            for status, reply in operation["responses"].items():
                assert re.fullmatch(r"\d{3}", status)
                assert reply["description"]
    assert len(ids) == len(set(ids))


@pytest.mark.shows("H.11")
async def test_creating_a_response_is_described_with_its_types() -> None:
    document = await fetch_document()
    create = document["paths"]["/v1/responses"]["post"]
    body = create["requestBody"]["content"]["application/json"]["schema"]
    assert {"model", "input", "stream", "temperature"} <= set(resolve_reference(document, body["$ref"])["properties"])
    reply = create["responses"]["200"]["content"]
    assert {"id", "output", "usage"} <= set(
        resolve_reference(document, reply["application/json"]["schema"]["$ref"])["properties"]
    )
    events = [resolve_reference(document, one["$ref"]) for one in reply["text/event-stream"]["schema"]["anyOf"]]
    types = {event["properties"]["type"]["enum"][0] for event in events}
    assert {"response.created", "response.output_text.delta", "response.completed", "error"} <= types
    assert {"400", "401", "413", "429", "503"} <= set(create["responses"])


async def test_public_routes_need_no_key() -> None:
    document = await fetch_document()
    for path, methods in document["paths"].items():
        assert (methods.get("get", {}).get("security") == []) is (path in ("/health", "/ready", "/version"))


def test_a_route_example_is_documented() -> None:
    async def endpoint(request: Request) -> None: ...

    route = Route("POST", "/v1/tokenize", "X", endpoint=endpoint, takes=dict[str, str])
    operation = describe([route], "1", Limits(), "otter-1")["paths"]["/v1/tokenize"]["post"]
    example = {"model": "otter-1", "prompt": "Hello!"}
    assert operation["requestBody"]["content"]["application/json"]["example"] == example


async def test_every_example_belongs_to_a_route() -> None:
    operations = [operation for path in (await fetch_document())["paths"].values() for operation in path.values()]
    bodies = [each["requestBody"]["content"] for each in operations if "requestBody" in each]
    shown = [content for body in bodies for content in body.values() if "example" in content]
    assert len(shown) == len(json.loads(openapi.EXAMPLES.read_text()))


@pytest.mark.shows("H.11")
async def test_the_docs_page_loads_no_external_resources() -> None:
    answer = await call(MinimalApp(Config()).app, "GET", "/docs")
    assert answer.status == 200
    assert answer.header(b"content-type") == b"text/html; charset=utf-8"
    page = answer.body.decode()
    assert not re.search(r"https?://|//cdn|@import|\burl\(", page)
    policy = (answer.header(b"content-security-policy") or b"").decode()
    script = page.partition("<script>")[2].partition("</script>")[0]
    assert f"script-src 'sha256-{base64.b64encode(sha256(script.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"\son\w+=|style=", page.partition("<body>")[2].partition("<script>")[0])


@pytest.mark.needs("chromium")
async def test_a_browser_shows_every_route(tmp_path: Path) -> None:
    with run_server() as server:
        server.wait_started()
        shown = subprocess.run(  # noqa: ASYNC221 - nothing else happens in this loop
            [
                find_chromium() or "",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-quic",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                f"--user-data-dir={tmp_path}",
                "--virtual-time-budget=10000",
                "--dump-dom",
                f"http://127.0.0.1:{server.port}/docs",
            ],
            capture_output=True,
            timeout=150,
            check=True,
        ).stdout.decode()
    for route in MinimalApp(Config()).routes:
        assert f'<span class="path mono">{route.path.replace("...}", "}")}</span>' in shown
    assert "curl http://127.0.0.1" in shown


def test_a_plain_string_is_documented_where_it_is_accepted() -> None:
    routes = [Route("POST", "/v1/responses", "", endpoint=_no_op_endpoint, takes=CreateResponse)]
    schemas = describe(routes, "1", Limits())["components"]["schemas"]
    properties = schemas["CreateResponse"]["properties"]
    assert [each.get("type") for each in properties["input"]["anyOf"]] == ["string", "array", "null"]
    assert {"type": "string"} in properties["conversation"]["anyOf"]
    assert {"type": "string"} in schemas["Message"]["properties"]["content"]["anyOf"]


@pytest.mark.shows("H.11")
async def test_query_parameters_are_described_with_their_bounds() -> None:
    document = await fetch_document()
    listing = document["paths"]["/v1/conversations/{conversation_id}/items"]["get"]["parameters"]
    assert [(one["name"], one["in"]) for one in listing] == [
        ("conversation_id", "path"),
        ("limit", "query"),
        ("order", "query"),
        ("after", "query"),
        ("include[]", "query"),
    ]
    limit, order = listing[1]["schema"], listing[2]["schema"]
    assert (limit["minimum"], limit["maximum"], limit["default"]) == (1, 100, 20)
    assert (sorted(order["enum"]), order["default"]) == (["asc", "desc"], "desc")
    retrieving = document["paths"]["/v1/responses/{response_id}"]["get"]
    assert {one["name"] for one in retrieving["parameters"]} >= {"stream", "starting_after", "include_obfuscation"}
    assert {*retrieving["responses"]["200"]["content"]} == {"application/json", "text/event-stream"}
    assert "ItemsQuery" not in document["components"]["schemas"]


async def _no_op_endpoint(request: Request) -> None: ...


async def test_null_is_documented_for_optional_fields() -> None:
    schemas = (await fetch_document())["components"]["schemas"]
    assert {"type": "null"} in schemas["FunctionTool"]["properties"]["strict"]["anyOf"]
    assert {"type": "null"} in schemas["CreateEmbedding"]["properties"]["encoding_format"]["anyOf"]
    assert {"type": "null"} in schemas["CreateContainer"]["properties"]["skills"]["anyOf"]
    assert schemas["FunctionTool"]["properties"]["name"]["type"] == "string"


async def test_required_fields_are_documented() -> None:
    schemas = (await fetch_document())["components"]["schemas"]
    assert "id" in schemas["ItemReference"]["required"]
    assert "messages" in schemas["CreateChat"]["required"]
    assert [one["required"] for one in schemas["InputFile"]["anyOf"]] == [["file_data"], ["file_id"], ["file_url"]]
    assert "anyOf" not in schemas["InputImage"], "listed items omit image URLs"
    assert "type" not in schemas["Message"]["required"]


async def test_configured_limits_are_documented() -> None:
    config = Config.from_settings(engine="fake", store="memory", limits=Limits(metadata_pairs=3))
    document = (await call(build_app(config, build_engine(config)), "GET", "/openapi.json")).json()
    metadata = document["components"]["schemas"]["CreateConversation"]["properties"]["metadata"]
    assert metadata["anyOf"][0]["maxProperties"] == 3


async def test_binary_replies_and_optional_bodies_are_documented() -> None:
    paths = (await fetch_document())["paths"]
    assert "application/octet-stream" in paths["/v1/embeddings"]["post"]["responses"]["200"]["content"]
    assert paths["/v1/conversations"]["post"]["requestBody"]["required"] is False
    assert paths["/v1/responses"]["post"]["requestBody"]["required"] is True


async def test_recorded_client_requests_are_valid_by_the_document() -> None:
    document = await fetch_document()
    validator = jsonschema_rs.validator_for(
        {"$ref": "#/components/schemas/CreateResponse", "components": document["components"]}
    )
    sent = [(name, body) for name, body in iter_create_requests() if not name.endswith("-frame")]
    assert len(sent) > 20
    assert [(name, error.message[:200]) for name, body in sent for error in validator.iter_errors(body)] == []
