"""Sharing, reuse, failure and closing of MCP sessions, against a correct server.

Covers `tools/mcp/session.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.egress import EgressClient
from antiphon.errors import McpFailed
from antiphon.protocol.types.items import McpHttpError, McpListTools
from antiphon.protocol.types.tools import McpTool
from tests.egress.test_client import make_tls_contexts
from tests.support.local_servers import serve_tcp
from tests.tools.mcp.hostile_server import run_hostile_server
from tests.tools.mcp.mcp_response import LONG_TIMEOUTS, call_tool, make_call, open_client, open_tools, run_call
from tests.tools.mcp.rpc_exchange import ECHO, RpcExchange, build_result, send_correct_reply

pytestmark = pytest.mark.anyio


class RecordingServer:
    """A correct MCP server that records its requests."""

    def __init__(self) -> None:
        self.exchanges: list[RpcExchange] = []
        self.tools: list[dict[str, Any]] = [ECHO]
        self.sessions: set[str] = set()
        self.notifications: asyncio.Queue[str] = asyncio.Queue()  # notifications to send
        self.calls_released = asyncio.Event()  # tool calls wait for it
        self.calls_released.set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def find_requests(self, method: str) -> list[RpcExchange]:
        return [exchange for exchange in self.exchanges if exchange.method == method]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            exchange = RpcExchange(head, await reader.readexactly(length), writer, "")
            self.exchanges.append(exchange)
            await self.answer(exchange)

    async def answer(self, exchange: RpcExchange) -> None:
        session = exchange.head.lower().partition(b"mcp-session-id:")[2].partition(b"\r\n")[0].strip().decode()
        if "moved" in exchange.target:
            await exchange.send_http(b"", "Location: /mcp", status="307 Temporary Redirect")
        elif session and session not in self.sessions:
            await exchange.send_http(status="404 Not Found")
        elif exchange.verb == "GET":
            await exchange.begin_response("text/event-stream")
            while True:
                await exchange.send_event({"jsonrpc": "2.0", "method": await self.notifications.get()})
        elif exchange.method == "initialize":
            self.sessions.add(name := f"s{len(self.exchanges)}")
            result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
            await exchange.send_result(result, f"Mcp-Session-Id: {name}")
        elif exchange.method == "tools/list":
            await exchange.send_result({"tools": self.tools})
        else:
            if exchange.method == "tools/call":
                await self.calls_released.wait()
            await send_correct_reply(exchange)


@asynccontextmanager
async def run_server(server: RecordingServer | None = None) -> AsyncIterator[RecordingServer]:
    server = server or RecordingServer()
    async with serve_tcp(server.serve) as server.port, asyncio.timeout(100):
        yield server


async def _wait_until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition is state of the server
            await asyncio.sleep(0.001)


@pytest.mark.shows("E.13")
async def test_a_session_is_shared_only_within_one_tenant_and_credential() -> None:
    async with run_server() as server, open_client() as mcp:
        for tenant, token in (("a", "one"), ("a", "one"), ("b", "one"), ("a", "two"), ("a", UNSET)):
            declared = McpTool(server_label="s", server_url=server.url, authorization=token)
            assert (await call_tool(mcp.begin(tenant, [declared]), message="hi")).output == "hi"
        assert len(server.find_requests("initialize")) == 4
        sent = [
            b"authorization: bearer one" in exchange.head.lower() for exchange in server.find_requests("tools/call")
        ]
        assert sent == [True, True, True, False, False]


async def test_concurrent_calls_share_one_session_and_get_their_own_results() -> None:
    async with run_server() as server, open_tools(server.url) as mcp_tools:
        items = await asyncio.gather(*(call_tool(mcp_tools, message=f"m{number}") for number in range(200)))
        assert [item.output for item in items] == [f"m{number}" for number in range(200)]
        assert len(server.find_requests("initialize")) == 1
        assert len(server.find_requests("tools/list")) == 1


async def test_a_list_is_cached_until_the_server_announces_a_change() -> None:
    async with run_server() as server, open_tools(server.url) as mcp_tools:
        await mcp_tools.list_tools("s")
        await mcp_tools.list_tools("s")
        assert len(server.find_requests("tools/list")) == 1
        server.tools = [{**ECHO, "description": "Now it says something."}]
        await server.notifications.put("notifications/tools/list_changed")
        async with asyncio.timeout(60):
            while (await mcp_tools.list_tools("s")).tools[0].description != "Now it says something.":  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.001)
        assert len(server.find_requests("tools/list")) == 2


async def test_a_stored_list_is_outdated_after_the_server_announces_a_change() -> None:
    async with run_server() as server, open_tools(server.url) as mcp_tools:
        listed = await mcp_tools.list_tools("s")
        assert not mcp_tools.is_outdated(listed)
        server.tools = [{**ECHO, "description": "Now it says something."}]
        await server.notifications.put("notifications/tools/list_changed")
        async with asyncio.timeout(60):
            while not mcp_tools.is_outdated(listed):  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.001)
        assert not mcp_tools.is_outdated(await mcp_tools.list_tools("s"))
        assert len(server.find_requests("tools/list")) == 2


async def test_a_stored_list_of_a_server_without_a_session_is_not_outdated() -> None:
    async with run_server() as server, open_tools(server.url) as mcp_tools:
        assert not mcp_tools.is_outdated(McpListTools(server_label="s", tools=[]))
        assert not mcp_tools.is_outdated(McpListTools(server_label="another", tools=[]))
        assert server.find_requests("tools/list") == []


async def test_a_definition_is_fetched_anew() -> None:
    async with run_server() as server, open_tools(server.url) as mcp_tools:
        await mcp_tools.list_tools("s")
        server.tools = [{**ECHO, "description": "Something else."}]
        definition = await mcp_tools.get_definition("s", "echo")
        assert definition is not None
        assert definition.description == "Something else."
        assert await mcp_tools.get_definition("s", "sing") is None


async def test_a_session_lost_by_the_server_is_reopened_for_a_list() -> None:
    async with run_server() as server, open_tools(server.url, replace(LONG_TIMEOUTS, list_ttl_seconds=-1)) as mcp_tools:
        await mcp_tools.list_tools("s")
        server.sessions.clear()
        assert len((await mcp_tools.list_tools("s")).tools) == 1
        assert len(server.find_requests("initialize")) == 2


async def test_a_call_is_not_repeated_when_the_server_lost_the_session() -> None:
    async with run_server() as server, open_tools(server.url) as mcp_tools:
        await mcp_tools.list_tools("s")
        server.sessions.clear()
        item = await call_tool(mcp_tools, message="hi")
        assert item.error == McpHttpError(code=404, message="The MCP server 's' answered with the HTTP status 404.")
        assert len(server.find_requests("tools/call")) == 1
        assert (await call_tool(mcp_tools, message="hi")).output == "hi"


async def test_an_idle_session_is_pinged_before_a_call() -> None:
    async with run_server() as server, open_client() as mcp:
        mcp_tools = mcp.begin("tenant", [McpTool(server_label="s", server_url=server.url)])
        await mcp_tools.list_tools("s")
        assert (await call_tool(mcp_tools, message="hi")).output == "hi"
        assert not server.find_requests("ping")
        server.sessions.clear()
        for session in mcp._sessions._sessions.values():
            session.last_response -= 60
        assert (await call_tool(mcp_tools, message="again")).output == "again"
        assert len(server.find_requests("ping")) == 1
        assert len(server.find_requests("tools/call")) == 2
        assert len(server.find_requests("initialize")) == 2


async def test_a_redirect_within_the_origin_is_remembered_and_a_call_is_sent_once() -> None:
    async with run_server() as server, open_tools(f"{server.url}?moved=1") as mcp_tools:
        assert (await call_tool(mcp_tools, message="hi")).output == "hi"
        assert [exchange.target for exchange in server.find_requests("tools/call")] == ["/mcp"]


async def test_a_cancelled_call_is_cancelled_on_the_server() -> None:
    async with run_server() as server, open_tools(server.url) as mcp_tools:
        await mcp_tools.list_tools("s")
        server.calls_released.clear()
        calling = asyncio.create_task(call_tool(mcp_tools, message="hi"))
        await _wait_until(lambda: server.find_requests("tools/call"))
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await _wait_until(lambda: server.find_requests("notifications/cancelled"))
        cancelled_id = server.find_requests("notifications/cancelled")[0].message["params"]["requestId"]
        assert cancelled_id == server.find_requests("tools/call")[0].id
        server.calls_released.set()
        assert (await call_tool(mcp_tools, message="after")).output == "after"


async def test_a_call_with_a_used_id_is_not_run() -> None:
    async with run_server() as server, open_tools(server.url) as mcp_tools:
        call = make_call(message="once")
        await run_call(mcp_tools, call)
        with pytest.raises(McpFailed, match="was run already"):
            await run_call(mcp_tools, call)
        assert len(server.find_requests("tools/call")) == 1


async def test_an_unused_session_is_closed() -> None:
    async with (
        run_server() as server,
        open_tools(server.url, replace(LONG_TIMEOUTS, session_idle_seconds=0.05)) as mcp_tools,
    ):
        await mcp_tools.list_tools("s")
        await _wait_until(lambda: [exchange for exchange in server.exchanges if exchange.verb == "DELETE"])
        assert (await call_tool(mcp_tools, message="again")).output == "again"
        assert len(server.find_requests("initialize")) == 2


async def test_the_least_recently_used_session_is_closed_at_the_limit() -> None:
    async with run_server() as server, open_client(replace(LONG_TIMEOUTS, tenant_sessions=2)) as mcp:
        for token in ("one", "two", "three"):
            declared = McpTool(server_label="s", server_url=server.url, authorization=token)
            await mcp.begin("tenant", [declared]).list_tools("s")
        await _wait_until(lambda: [exchange for exchange in server.exchanges if exchange.verb == "DELETE"])
        deletion = next(exchange for exchange in server.exchanges if exchange.verb == "DELETE")
        assert b"bearer one" in deletion.head.lower()


async def test_a_session_beyond_the_limit_is_rejected_while_all_are_in_use() -> None:
    async with run_server() as server, open_client(replace(LONG_TIMEOUTS, tenant_sessions=1)) as mcp:
        one = mcp.begin("tenant", [McpTool(server_label="s", server_url=server.url, authorization="one")])
        await one.list_tools("s")
        server.calls_released.clear()
        calling = asyncio.create_task(call_tool(one, message="hi"))
        await _wait_until(lambda: server.find_requests("tools/call"))
        two = mcp.begin("tenant", [McpTool(server_label="s", server_url=server.url, authorization="two")])
        with pytest.raises(McpFailed, match="Too many MCP servers"):
            await two.list_tools("s")
        server.calls_released.set()
        assert (await calling).output == "hi"


async def test_opening_a_session_is_aborted_once_all_waiters_are_cancelled() -> None:
    async with run_hostile_server() as hostile, open_client() as mcp:
        mcp_tools = mcp.begin("t", [McpTool(server_label="s", server_url=hostile.url("silent.greet"))])
        tasks = [asyncio.create_task(mcp_tools.list_tools("s")) for _ in range(2)]
        # Both wait for it; the second may still be waiting for the import of the session class when the first opens it.
        await _wait_until(lambda: [pooled.users for pooled in mcp._sessions._sessions.values()] == [2])
        tasks[0].cancel()
        await asyncio.wait(tasks, timeout=0.05)
        assert _count_session_tasks() == 1
        tasks[1].cancel()
        await _wait_until(lambda: _count_session_tasks() == 0)


def _count_session_tasks() -> int:
    return sum(task.get_name().startswith("mcp ") for task in asyncio.all_tasks())


async def test_a_session_with_too_many_unanswered_calls_is_replaced() -> None:
    async with run_server() as server, open_client(replace(LONG_TIMEOUTS, call_seconds=2)) as mcp:
        mcp_tools = mcp.begin("t", [McpTool(server_label="s", server_url=server.url)])
        await mcp_tools.list_tools("s")
        server.calls_released.clear()
        lost = await asyncio.gather(*(call_tool(mcp_tools, message="lost") for _ in range(8)))
        assert {item.status for item in lost} == {"failed"}
        server.calls_released.set()
        assert (await call_tool(mcp_tools, message="hi")).output == "hi"
        assert len(server.find_requests("initialize")) == 2


class SseServer(RecordingServer):
    """A server of the older HTTP+SSE transport: responses arrive in the stream that a GET opened."""

    def __init__(self) -> None:
        super().__init__()
        self.stream: RpcExchange | None = None
        self.fails = False

    async def answer(self, exchange: RpcExchange) -> None:
        if exchange.verb == "GET":
            self.stream = exchange
            await exchange.begin_response("text/event-stream")
            await exchange.write(b"event: endpoint\ndata: /messages\n\n")
            await exchange.wait_forever()
        elif exchange.name != "messages":
            await exchange.send_http(status="405 Method Not Allowed")
        elif exchange.method == "tools/call" and self.fails:
            await exchange.send_http(status="500 Oops")
        else:
            await exchange.send_http(status="202 Accepted")
            if exchange.id is not None and self.stream is not None:
                error = {"error": {"code": -32601, "message": "no"}}
                answer = error if exchange.method == "server/discover" else {"result": build_result(exchange)}
                await self.stream.send_event({"jsonrpc": "2.0", "id": exchange.id, **answer})


async def test_an_sse_server_is_opened_by_get_and_an_error_fails_only_one_call() -> None:
    older = SseServer()
    async with run_server(older), open_tools(older.url) as mcp_tools:
        assert (await call_tool(mcp_tools, message="hi")).output == "hi"
        older.fails = True
        failed = await call_tool(mcp_tools, message="lost")
        assert isinstance(failed.error, McpHttpError)
        assert failed.error.code == 500
        older.fails = False
        assert (await call_tool(mcp_tools, message="again")).output == "again"
        assert len(older.find_requests("tools/call")) == 3


async def test_the_certificate_must_match_the_host_of_the_url() -> None:
    server, trusting = make_tls_contexts()
    async with run_hostile_server(tls=server) as good:
        async with open_client(LONG_TIMEOUTS, EgressClient(tls=trusting)) as mcp:
            declared = McpTool(server_label="s", server_url=f"https://localhost:{good.port}/good")
            assert (await call_tool(mcp.begin("t", [declared]), message="hi")).output == "hi"
            other = McpTool(server_label="s", server_url=f"https://127.0.0.1:{good.port}/good")
            with pytest.raises(McpFailed, match=r"is not trusted|closed the connection"):
                await mcp.begin("t", [other]).list_tools("s")
        assert sum(good.calls.values()) == 1


async def test_tools_of_one_name_on_two_servers_are_distinguished() -> None:
    async with run_server() as first, run_server() as second, open_client() as mcp:
        declared = [McpTool(server_label=label, server_url=url) for label, url in (("a", first.url), ("b", second.url))]
        mcp_tools = mcp.begin("tenant", declared)
        assert (await call_tool(mcp_tools, label="b", message="for b")).output == "for b"
        assert not first.exchanges
        assert len(second.find_requests("tools/call")) == 1
