import base64
import re
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from antiphon.config import Config
from antiphon.limits import Limits
from antiphon.protocol.types.request import CreateResponse
from antiphon.transport.endpoints.openapi import describe
from antiphon.transport.http.request import Request, Route
from antiphon.wiring import build_app, build_engine
from tests.plugins.services import chromium
from tests.protocol.decoding.recorded_requests import creates
from tests.support.asgi_client import call
from tests.transport.edge_process import process
from tests.transport.minimal_app import Edge

pytestmark = pytest.mark.anyio

OPERATION_FIELDS = {
    "operationId", "summary", "description", "tags", "parameters", "requestBody", "responses", "security",
}  # fmt: skip


async def whole() -> Any:
    """Of the server as it is shipped."""
    config = Config(engine="fake", store="memory")
    answer = await call(build_app(config, build_engine(config)), "GET", "/openapi.json")
    assert answer.status == 200
    return answer.json()


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def resolved(document: Any, reference: str) -> Any:
    assert reference.startswith("#/"), reference
    for key in reference[2:].split("/"):
        document = document[key]
    return document


@pytest.mark.shows("H.11")
async def test_every_route_is_described() -> None:
    edge = Edge(Config())
    document = (await call(edge.app, "GET", "/openapi.json")).json()
    told = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert told == {(route.method, route.path.replace("...}", "}")) for route in edge.routes}


async def test_the_document_is_openapi_3_1_and_every_reference_leads_somewhere() -> None:
    document = await whole()
    assert re.fullmatch(r"3\.1\.\d+", document["openapi"])
    assert set(document["info"]) >= {"title", "version"}
    assert all(isinstance(resolved(document, one), dict) for one in references(document))
    ids = []
    for path, methods in document["paths"].items():
        assert path.startswith("/")
        for operation in methods.values():
            assert set(operation) <= OPERATION_FIELDS
            ids.append(operation["operationId"])
            named = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
            for status, reply in operation["responses"].items():
                assert re.fullmatch(r"\d{3}", status)
                assert reply["description"]
    assert len(ids) == len(set(ids))


@pytest.mark.shows("H.11")
async def test_creating_a_response_is_described_with_its_types() -> None:
    document = await whole()
    create = document["paths"]["/v1/responses"]["post"]
    body = create["requestBody"]["content"]["application/json"]["schema"]
    assert {"model", "input", "stream", "temperature"} <= set(resolved(document, body["$ref"])["properties"])
    reply = create["responses"]["200"]["content"]
    assert {"id", "output", "usage"} <= set(
        resolved(document, reply["application/json"]["schema"]["$ref"])["properties"]
    )
    events = [resolved(document, one["$ref"]) for one in reply["text/event-stream"]["schema"]["anyOf"]]
    types = {event["properties"]["type"]["enum"][0] for event in events}
    assert {"response.created", "response.output_text.delta", "response.completed", "error"} <= types
    assert {"400", "401", "413", "429", "503"} <= set(create["responses"])


async def test_public_routes_need_no_key() -> None:
    document = await whole()
    for path, methods in document["paths"].items():
        assert (methods.get("get", {}).get("security") == []) is (path in ("/health", "/ready", "/version"))


def test_an_example_is_shown() -> None:
    async def endpoint(request: Request) -> None: ...

    route = Route(method="POST", path="/x", endpoint=endpoint, summary="X", takes=dict[str, int], example={"a": 1})
    content = describe([route], "1")["paths"]["/x"]["post"]["requestBody"]["content"]["application/json"]
    assert content["example"] == {"a": 1}


@pytest.mark.shows("H.11")
async def test_the_page_needs_nothing_from_elsewhere() -> None:
    answer = await call(Edge(Config()).app, "GET", "/docs")
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
    with process() as server:
        server.started()
        shown = subprocess.run(  # noqa: ASYNC221 - nothing else happens in this loop
            [
                chromium() or "", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                f"--user-data-dir={tmp_path}", "--virtual-time-budget=10000", "--dump-dom",
                f"http://127.0.0.1:{server.port}/docs",
            ],
            capture_output=True, timeout=150, check=True,
        ).stdout.decode()  # fmt: skip
    for route in Edge(Config()).routes:
        assert f'<span class="path mono">{route.path.replace("...}", "}")}</span>' in shown
    assert "curl http://127.0.0.1" in shown


def test_a_plain_string_is_documented_where_it_is_accepted() -> None:
    routes = [Route(method="POST", path="/v1/responses", endpoint=_nothing, summary="", takes=CreateResponse)]
    schemas = describe(routes, "1")["components"]["schemas"]
    given = schemas["CreateResponse"]["properties"]
    assert [each.get("type") for each in given["input"]["anyOf"]] == ["string", "array", "null"]
    assert {"type": "string"} in given["conversation"]["anyOf"]
    assert {"type": "string"} in schemas["Message"]["properties"]["content"]["anyOf"]


@pytest.mark.shows("H.11")
async def test_queries_are_described_with_their_bounds() -> None:
    document = await whole()
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


async def _nothing(request: Request) -> None: ...


async def test_a_null_is_documented_where_it_is_nothing() -> None:
    schemas = (await whole())["components"]["schemas"]
    assert {"type": "null"} in schemas["FunctionTool"]["properties"]["strict"]["anyOf"]
    assert {"type": "null"} in schemas["CreateEmbedding"]["properties"]["encoding_format"]["anyOf"]
    assert schemas["FunctionTool"]["properties"]["name"]["type"] == "string"


async def test_what_is_needed_besides_is_documented() -> None:
    schemas = (await whole())["components"]["schemas"]
    assert "id" in schemas["ItemReference"]["required"]
    assert "messages" in schemas["CreateChat"]["required"]
    assert [one["required"] for one in schemas["InputFile"]["anyOf"]] == [["file_data"], ["file_id"], ["file_url"]]
    assert "anyOf" not in schemas["InputImage"], "what is listed leaves URLs of pictures out"
    assert "type" not in schemas["Message"]["required"]


async def test_the_operators_bounds_are_documented() -> None:
    config = Config(engine="fake", store="memory", limits=Limits(metadata_pairs=3))
    document = (await call(build_app(config, build_engine(config)), "GET", "/openapi.json")).json()
    metadata = document["components"]["schemas"]["CreateConversation"]["properties"]["metadata"]
    assert metadata["anyOf"][0]["maxProperties"] == 3


async def test_a_reply_in_bytes_and_a_body_that_may_be_missing_are_documented() -> None:
    paths = (await whole())["paths"]
    assert "application/octet-stream" in paths["/v1/embeddings"]["post"]["responses"]["200"]["content"]
    assert paths["/v1/conversations"]["post"]["requestBody"]["required"] is False
    assert paths["/v1/responses"]["post"]["requestBody"]["required"] is True


async def test_what_real_clients_send_is_valid_by_the_document() -> None:
    document = await whole()
    validator = jsonschema_rs.validator_for(
        {"$ref": "#/components/schemas/CreateResponse", "components": document["components"]}
    )
    sent = [(name, body) for name, body in creates() if not name.endswith("-frame")]
    assert len(sent) > 20
    assert [(name, error.message[:200]) for name, body in sent for error in validator.iter_errors(body)] == []
