"""Traces as an OTLP collector receives them: parents and children, attributes, and content that must be left out.

Covers `service/operations/observability.py`.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

import antiphon.tools.mcp.session  # noqa: F401 - imported before the tests because it takes seconds
from antiphon.config import Config
from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text
from antiphon.engines.factory import build_pool
from antiphon.errors import EngineFailed, StartupError
from antiphon.wiring import build_app
from tests.api.anthropic_requests import PNG_BASE64
from tests.api.app import ApiServer, run_api
from tests.engines.http.stubs.chat_stub import run_stub
from tests.support.asgi_client import JSON, call
from tests.support.otlp_collector import Collector, run_collector
from tests.tools.mcp.hostile_server import HostileServer
from tests.tools.mcp.hostile_server import run_hostile_server as mcp_server
from tests.tools.mcp.rpc_exchange import RpcExchange
from tests.transport.websocket.ws_client import open_websocket

pytestmark = pytest.mark.anyio

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = (b"traceparent", f"00-{TRACE}-{SPAN}-01".encode())
CONTENT = ("a question of mine", "an answer of yours")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with run_collector() as collector:
        yield collector


def run_traced_api(collector: Collector, **settings: Any) -> Any:
    return run_api(otlp_endpoint=collector.url, **settings)


@pytest.mark.shows("H.9")
async def test_a_request_a_response_and_its_turn_are_spans_of_one_trace(collector: Collector) -> None:
    async with run_traced_api(collector) as server:
        made = await server.create(input="Hello!", temperature=0.5)
    spans = collector.wait_for("POST /v1/responses", "invoke_agent", "chat fake", "store finish")
    request, response, turn = (spans[name] for name in ("POST /v1/responses", "invoke_agent", "chat fake"))
    assert {span.trace for span in spans.values()} == {request.trace}
    assert (request.parent, response.parent, turn.parent) == ("", request.id, response.id)
    assert spans["store finish"].parent == request.id
    assert (request.kind, response.kind, turn.kind) == ("server", "internal", "client")
    assert request.attributes["http.route"] == "/v1/responses"
    assert request.attributes["http.response.status_code"] == 200
    assert response.attributes["gen_ai.response.id"] == made["id"]
    assert response.attributes["antiphon.response.status"] == "completed"
    assert turn.attributes["gen_ai.operation.name"] == "chat"
    assert turn.attributes["gen_ai.provider.name"] == "fake"
    assert turn.attributes["gen_ai.request.model"] == turn.attributes["gen_ai.response.model"] == "fake"
    assert turn.attributes["gen_ai.request.temperature"] == 0.5
    assert turn.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    for span in (response, turn):
        assert span.attributes["gen_ai.usage.input_tokens"] == made["usage"]["input_tokens"]
        assert span.attributes["gen_ai.usage.output_tokens"] == made["usage"]["output_tokens"]
    assert {span.service for span in spans.values()} == {"antiphon"}
    assert not any(span.failed for span in spans.values())


@pytest.mark.parametrize("path", ["responses", "chat/completions", "completions", "messages"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.shows("H.9")
async def test_every_api_is_traced_and_continues_the_clients_trace(
    collector: Collector, path: str, stream: bool
) -> None:
    fields = {"input": "hi"} if path == "responses" else {"messages": [{"role": "user", "content": "hi"}]}
    body = {"model": "fake", "stream": stream, **({"prompt": "hi"} if path == "completions" else fields)}
    async with run_traced_api(collector) as server:
        answer = await server.post(path, {**body, "max_tokens": 20} if path == "messages" else body, TRACEPARENT)
        assert answer.status == 200, answer.body
    turn = "text_completion fake" if path == "completions" else "chat fake"
    spans = collector.wait_for(f"POST /v1/{path}", turn)
    assert {span.trace for span in spans.values()} == {TRACE}
    assert spans[f"POST /v1/{path}"].parent == SPAN
    assert spans[turn].attributes["gen_ai.usage.output_tokens"] > 0


@pytest.mark.shows("H.9")
async def test_each_of_several_answers_is_a_span_below_the_response(collector: Collector) -> None:
    async with run_traced_api(collector) as server:
        await server.create(n=3)
    spans = collector.wait_for("POST /v1/responses", "invoke_agent", "chat fake")
    turns = [span for span in collector.spans if span.name == "chat fake"]
    assert {turn.parent for turn in turns} == {spans["invoke_agent"].id}
    assert len({turn.id for turn in turns}) == 3


async def test_the_engine_receives_the_trace_context_of_the_turn(collector: Collector) -> None:
    async with run_stub("vllm") as stub:
        config = Config.from_settings(engine=stub.url, store="memory", otlp_endpoint=collector.url)
        app = build_app(config, build_pool(config))
        await app.lifecycle.open()
        try:
            body = json.dumps({"model": "m", "input": "hi"}).encode()
            state = (b"tracestate", b"vendor=1")
            assert (await call(app, "POST", "/v1/responses", JSON, TRACEPARENT, state, body=[body])).status == 200
        finally:
            await app.lifecycle.close()
        heads = [head for head in stub.heads if head.startswith("POST /v1/chat/completions")]
    spans = collector.wait_for("chat m")
    assert f"traceparent: 00-{TRACE}-{spans['chat m'].id}-01\r\n" in heads[-1]
    assert "tracestate: vendor=1\r\n" in heads[-1]


async def test_the_clients_trace_is_forwarded_if_tracing_is_off() -> None:
    async with run_stub("vllm") as stub:
        config = Config.from_settings(engine=stub.url, store="memory")
        app = build_app(config, build_pool(config))
        await app.lifecycle.open()
        try:
            body = json.dumps({"model": "m", "input": "hi"}).encode()
            for headers in ((TRACEPARENT,), ()):
                assert (await call(app, "POST", "/v1/responses", JSON, *headers, body=[body])).status == 200
        finally:
            await app.lifecycle.close()
        heads = [head for head in stub.heads if head.startswith("POST /v1/chat/completions")]
    assert f"traceparent: {TRACEPARENT[1].decode()}\r\n" in heads[-2]
    assert "traceparent" not in heads[-1]


class RecordingMcpServer(HostileServer):
    """A well-behaved MCP server that records its requests."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[RpcExchange] = []

    async def _answer(self, exchange: RpcExchange) -> bool:
        self.exchanges.append(exchange)
        return await super()._answer(exchange)


@pytest.mark.shows("H.9")
async def test_a_tool_call_is_a_span_and_its_mcp_server_receives_the_trace_context(collector: Collector) -> None:
    async with mcp_server(RecordingMcpServer()) as mcp, run_traced_api(collector) as server:
        server.engine.says(CallStarted(0, "s__echo"), CallDelta(0, '{"message": "a secret wish"}'), CallDone(0))
        server.engine.says(Text("Done."))
        tools = [{"type": "mcp", "server_label": "s", "server_url": mcp.url("good"), "require_approval": "never"}]
        made = await server.create(tools=tools)
        assert [item["type"] for item in made["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    assert isinstance(mcp, RecordingMcpServer)
    spans = collector.wait_for("execute_tool echo", "invoke_agent")
    tool = spans["execute_tool echo"]
    assert tool.parent == spans["invoke_agent"].id
    assert tool.attributes["gen_ai.operation.name"] == "execute_tool"
    assert tool.attributes["gen_ai.tool.call.id"] == made["output"][1]["id"]
    assert "gen_ai.tool.call.arguments" not in tool.attributes
    assert [span.name for span in collector.spans].count("chat fake") == 2
    [call_exchange] = [exchange for exchange in mcp.exchanges if exchange.method == "tools/call"]
    traceparent = f"00-{tool.trace}-{tool.id}-01"
    assert call_exchange.message["params"]["_meta"]["traceparent"] == traceparent
    assert f"traceparent: {traceparent}".encode() in call_exchange.head


async def test_websocket_messages_are_traced_separately(collector: Collector) -> None:
    async with run_traced_api(collector) as server, open_websocket(server.app, TRACEPARENT) as connection:
        first, second = await connection.create(), await connection.create()
    collector.wait_for("websocket response.create", "invoke_agent")
    requests = [span for span in collector.spans if span.name == "websocket response.create"]
    runs = [span for span in collector.spans if span.name == "invoke_agent"]
    assert {span.trace for span in requests} == {TRACE}
    assert {span.parent for span in requests} == {SPAN}
    assert {span.parent for span in runs} == {span.id for span in requests}
    assert [span.attributes["gen_ai.response.id"] for span in runs] == [first["id"], second["id"]]


async def test_a_background_response_belongs_to_the_trace_of_its_request(collector: Collector) -> None:
    async with run_traced_api(collector) as server, asyncio.timeout(30):
        for _ in range(2):  # the first one may wait for the next poll of the queue
            made = await server.create(background=True)
            while (await server.get(f"responses/{made['id']}")).json()["status"] != "completed":  # noqa: ASYNC110 - polled
                await asyncio.sleep(0.01)
    spans = collector.wait_for("invoke_agent", "POST /v1/responses")
    assert spans["invoke_agent"].trace == spans["POST /v1/responses"].trace


@pytest.mark.parametrize("trace_content", [False, True])
@pytest.mark.shows("H.9")
async def test_content_is_traced_only_if_trace_content_is_on(collector: Collector, trace_content: bool) -> None:
    async with run_traced_api(collector, trace_content=trace_content) as server:
        server.engine.says(Text(CONTENT[1]))
        await server.create(input=CONTENT[0])
    collector.wait_for("chat fake")
    sent = b"".join(collector.bodies)
    assert [text.encode() in sent for text in CONTENT] == [trace_content, trace_content]
    if trace_content:
        attributes = collector.wait_for("chat fake")["chat fake"].attributes
        [input_message] = json.loads(attributes["gen_ai.input.messages"])
        [output_message] = json.loads(attributes["gen_ai.output.messages"])
        assert input_message == {"role": "user", "parts": [{"type": "text", "content": CONTENT[0]}]}
        assert output_message["parts"] == [{"type": "text", "content": CONTENT[1]}]


async def test_an_image_is_traced_as_its_type(collector: Collector) -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG_BASE64}"}
    async with run_traced_api(collector, trace_content=True) as server:
        await server.create(input=[{"role": "user", "content": [{"type": "input_text", "text": "What?"}, image]}])
    attributes = collector.wait_for("chat fake")["chat fake"].attributes
    [message] = json.loads(attributes["gen_ai.input.messages"])
    assert message["parts"] == [{"type": "text", "content": "What?"}, {"type": "image_url"}]


async def test_failures_are_marked_where_they_happened(collector: Collector) -> None:
    async with run_traced_api(collector) as server:
        server.engine.fails(EngineFailed("It died."))
        assert (await server.post("responses", {"model": "fake", "input": "hi"})).status >= 500
        assert (await server.get("responses/resp_nothing")).status == 404
    spans = collector.wait_for("POST /v1/responses", "chat fake", "GET /v1/responses/{response_id}")
    assert spans["POST /v1/responses"].failed
    assert spans["invoke_agent"].failed
    assert spans["chat fake"].attributes["error.type"] == spans["invoke_agent"].attributes["error.type"]
    assert not spans["GET /v1/responses/{response_id}"].failed


@pytest.mark.parametrize("fault", ["refuses", "hangs", "is away"])
async def test_a_failing_collector_does_not_affect_requests(
    collector: Collector, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    url = "http://127.0.0.1:9" if fault == "is away" else collector.url
    collector.status = 400 if fault == "refuses" else 200
    if fault == "hangs":
        collector.unblocked.clear()
    async with asyncio.timeout(30), run_api(otlp_endpoint=url) as server:
        for _ in range(20):
            await server.create()
        await asyncio.to_thread(_flush_spans, server)
        for _ in range(20):
            await server.create()
        text = (await call(server.app, "GET", "/metrics")).body.decode()
    if fault == "refuses":
        assert 'antiphon_trace_spans_total{outcome="failed"} ' in text


def _flush_spans(server: ApiServer) -> None:
    tracer = server.app.lifecycle.components.observability.tracer  # type: ignore[attr-defined]  # set by `build_app`
    tracer._batches.force_flush(500)


async def test_the_standard_otel_variables_are_respected(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-who=me")
    async with run_traced_api(collector) as server:
        await server.create()
        assert (await server.post("responses", {"model": "fake", "input": "hi"}, TRACEPARENT)).status == 200
    collector.wait_for("chat fake")
    assert {span.trace for span in collector.spans} == {TRACE}
    assert {span.service for span in collector.spans} == {"mine"}
    assert collector.headers[0]["x-who"] == "me"


async def test_an_endpoint_that_is_not_a_url_stops_the_start() -> None:
    with pytest.raises(StartupError, match="--otlp-endpoint"):
        async with run_api(otlp_endpoint="collector:4318"):
            pass
