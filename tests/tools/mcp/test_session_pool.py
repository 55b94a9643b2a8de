"""How sessions are shared, kept, broken and closed, with a server that is in good order."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.egress import Egress
from antiphon.errors import McpFailed
from antiphon.protocol.types.builtin_items import McpHttpError
from antiphon.protocol.types.items import McpListTools
from antiphon.protocol.types.tools import McpTool
from tests.egress.test_client import contexts
from tests.support.local_servers import tcp
from tests.tools.mcp.hostile_server import serving
from tests.tools.mcp.mcp_response import PATIENT, called, client, tools, use, used
from tests.tools.mcp.rpc_exchange import ECHO, Talk, behave, due

pytestmark = pytest.mark.anyio


class Server:
    """Notes what it was asked."""

    def __init__(self) -> None:
        self.talks: list[Talk] = []
        self.tools: list[dict[str, Any]] = [ECHO]
        self.sessions: set[str] = set()
        self.news: asyncio.Queue[str] = asyncio.Queue()  # notifications to be told
        self.hold = asyncio.Event()  # calls wait for it
        self.hold.set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def asked(self, method: str) -> list[Talk]:
        return [talk for talk in self.talks if talk.method == method]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            talk = Talk(head, await reader.readexactly(length), writer, "")
            self.talks.append(talk)
            await self.answer(talk)

    async def answer(self, talk: Talk) -> None:
        session = talk.head.lower().partition(b"mcp-session-id:")[2].partition(b"\r\n")[0].strip().decode()
        if "moved" in talk.target:
            await talk.http(b"", "Location: /mcp", status="307 Temporary Redirect")
        elif session and session not in self.sessions:
            await talk.http(status="404 Not Found")
        elif talk.verb == "GET":
            await talk.begin("text/event-stream")
            while True:
                await talk.event({"jsonrpc": "2.0", "method": await self.news.get()})
        elif talk.method == "initialize":
            self.sessions.add(name := f"s{len(self.talks)}")
            about = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
            await talk.result(about, f"Mcp-Session-Id: {name}")
        elif talk.method == "tools/list":
            await talk.result({"tools": self.tools})
        else:
            if talk.method == "tools/call":
                await self.hold.wait()
            await behave(talk)


@asynccontextmanager
async def running(server: Server | None = None) -> AsyncIterator[Server]:
    server = server or Server()
    async with tcp(server.serve) as server.port, asyncio.timeout(100):
        yield server


async def _until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it is the server's state
            await asyncio.sleep(0.001)


@pytest.mark.shows("E.13")
async def test_calls_of_one_tenant_with_one_credential_share_a_session_and_nobody_else_does() -> None:
    async with running() as server, client() as mcp:
        for tenant, token in (("a", "one"), ("a", "one"), ("b", "one"), ("a", "two"), ("a", UNSET)):
            declared = McpTool(server_label="s", server_url=server.url, authorization=token)
            assert (await called(mcp.begin(tenant, [declared]), message="hi")).output == "hi"
        assert len(server.asked("initialize")) == 4
        sent = [b"authorization: bearer one" in talk.head.lower() for talk in server.asked("tools/call")]
        assert sent == [True, True, True, False, False]


async def test_many_at_once_share_one_opening_and_get_their_own_results() -> None:
    async with running() as server, tools(server.url) as some:
        items = await asyncio.gather(*(called(some, message=f"m{number}") for number in range(200)))
        assert [item.output for item in items] == [f"m{number}" for number in range(200)]
        assert len(server.asked("initialize")) == 1
        assert len(server.asked("tools/list")) == 1


async def test_a_list_is_remembered_until_the_server_says_that_it_changed() -> None:
    async with running() as server, tools(server.url) as some:
        await some.list("s")
        await some.list("s")
        assert len(server.asked("tools/list")) == 1
        server.tools = [{**ECHO, "description": "Now it says something."}]
        await server.news.put("notifications/tools/list_changed")
        async with asyncio.timeout(60):
            while (await some.list("s")).tools[0].description != "Now it says something.":  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.001)
        assert len(server.asked("tools/list")) == 2


async def test_a_list_of_the_past_is_outdated_once_it_is_known_to_be_another() -> None:
    async with running() as server, tools(server.url) as some:
        listed = await some.list("s")
        assert not some.outdated(listed)
        server.tools = [{**ECHO, "description": "Now it says something."}]
        await server.news.put("notifications/tools/list_changed")
        async with asyncio.timeout(60):
            while not some.outdated(listed):  # noqa: ASYNC110 - the session tells nobody
                await asyncio.sleep(0.001)
        assert not some.outdated(await some.list("s"))
        assert len(server.asked("tools/list")) == 2


async def test_a_list_of_a_server_that_nobody_has_asked_lately_is_believed() -> None:
    async with running() as server, tools(server.url) as some:
        assert not some.outdated(McpListTools(server_label="s", tools=[]))
        assert not some.outdated(McpListTools(server_label="another", tools=[]))
        assert server.asked("tools/list") == []


async def test_a_definition_is_asked_for_anew() -> None:
    async with running() as server, tools(server.url) as some:
        await some.list("s")
        server.tools = [{**ECHO, "description": "Something else."}]
        definition = await some.definition("s", "echo")
        assert definition is not None
        assert definition.description == "Something else."
        assert await some.definition("s", "sing") is None


async def test_a_session_that_the_server_forgot_is_opened_anew_to_list() -> None:
    async with running() as server, tools(server.url, replace(PATIENT, list_ttl_seconds=-1)) as some:
        await some.list("s")
        server.sessions.clear()
        assert len((await some.list("s")).tools) == 1
        assert len(server.asked("initialize")) == 2


async def test_a_call_is_not_repeated_when_the_session_is_forgotten() -> None:
    async with running() as server, tools(server.url) as some:
        await some.list("s")
        server.sessions.clear()
        item = await called(some, message="hi")
        assert item.error == McpHttpError(code=404, message="The MCP server 's' answered with the HTTP status 404.")
        assert len(server.asked("tools/call")) == 1
        assert (await called(some, message="hi")).output == "hi"


async def test_a_session_that_rested_is_asked_whether_it_still_is_one_before_a_call() -> None:
    async with running() as server, client() as mcp:
        some = mcp.begin("tenant", [McpTool(server_label="s", server_url=server.url)])
        await some.list("s")
        assert (await called(some, message="hi")).output == "hi"
        assert not server.asked("ping")
        server.sessions.clear()
        for held in mcp._sessions._held.values():
            held.heard -= 60
        assert (await called(some, message="again")).output == "again"
        assert len(server.asked("ping")) == 1
        assert len(server.asked("tools/call")) == 2
        assert len(server.asked("initialize")) == 2


async def test_a_move_within_the_origin_is_kept_in_mind_and_a_call_is_sent_once() -> None:
    async with running() as server, tools(f"{server.url}?moved=1") as some:
        assert (await called(some, message="hi")).output == "hi"
        assert [talk.target for talk in server.asked("tools/call")] == ["/mcp"]


async def test_a_call_that_is_given_up_is_cancelled_on_the_server() -> None:
    async with running() as server, tools(server.url) as some:
        await some.list("s")
        server.hold.clear()
        calling = asyncio.create_task(called(some, message="hi"))
        await _until(lambda: server.asked("tools/call"))
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await _until(lambda: server.asked("notifications/cancelled"))
        given_up = server.asked("notifications/cancelled")[0].message["params"]["requestId"]
        assert given_up == server.asked("tools/call")[0].id
        server.hold.set()
        assert (await called(some, message="after")).output == "after"


async def test_a_call_with_an_id_that_was_used_is_not_run() -> None:
    async with running() as server, tools(server.url) as some:
        wanted = use(message="once")
        await used(some, wanted)
        with pytest.raises(McpFailed, match="was run already"):
            await used(some, wanted)
        assert len(server.asked("tools/call")) == 1


async def test_a_session_that_nobody_uses_is_closed() -> None:
    async with running() as server, tools(server.url, replace(PATIENT, session_idle_seconds=0.05)) as some:
        await some.list("s")
        await _until(lambda: [talk for talk in server.talks if talk.verb == "DELETE"])
        assert (await called(some, message="again")).output == "again"
        assert len(server.asked("initialize")) == 2


async def test_there_is_a_bound_on_sessions_and_the_longest_unused_makes_room() -> None:
    async with running() as server, client(replace(PATIENT, tenant_sessions=2)) as mcp:
        for token in ("one", "two", "three"):
            declared = McpTool(server_label="s", server_url=server.url, authorization=token)
            await mcp.begin("tenant", [declared]).list("s")
        await _until(lambda: [talk for talk in server.talks if talk.verb == "DELETE"])
        gone = next(talk for talk in server.talks if talk.verb == "DELETE")
        assert b"bearer one" in gone.head.lower()


async def test_a_tenant_whose_sessions_are_all_in_use_waits_its_turn() -> None:
    async with running() as server, client(replace(PATIENT, tenant_sessions=1)) as mcp:
        one = mcp.begin("tenant", [McpTool(server_label="s", server_url=server.url, authorization="one")])
        await one.list("s")
        server.hold.clear()
        calling = asyncio.create_task(called(one, message="hi"))
        await _until(lambda: server.asked("tools/call"))
        two = mcp.begin("tenant", [McpTool(server_label="s", server_url=server.url, authorization="two")])
        with pytest.raises(McpFailed, match="Too many MCP servers"):
            await two.list("s")
        server.hold.set()
        assert (await calling).output == "hi"


async def test_an_opening_that_nobody_waits_for_any_more_is_given_up() -> None:
    async with serving() as hostile, client() as mcp:
        some = mcp.begin("t", [McpTool(server_label="s", server_url=hostile.url("silent.greet"))])
        both = [asyncio.create_task(some.list("s")) for _ in range(2)]
        await _until(lambda: _owners() == 1)
        both[0].cancel()
        await asyncio.wait(both, timeout=0.05)
        assert _owners() == 1
        both[1].cancel()
        await _until(lambda: _owners() == 0)


def _owners() -> int:
    return sum(task.get_name().startswith("mcp ") for task in asyncio.all_tasks())


async def test_a_session_in_which_too_much_went_unanswered_is_left_to_those_who_are_in_it() -> None:
    async with running() as server, client(replace(PATIENT, call_seconds=2)) as mcp:
        some = mcp.begin("t", [McpTool(server_label="s", server_url=server.url)])
        await some.list("s")
        server.hold.clear()
        lost = await asyncio.gather(*(called(some, message="lost") for _ in range(8)))
        assert {item.status for item in lost} == {"failed"}
        server.hold.set()
        assert (await called(some, message="hi")).output == "hi"
        assert len(server.asked("initialize")) == 2


class Older(Server):
    """Server-sent events, as it was once: answers come in the stream that a GET opened."""

    def __init__(self) -> None:
        super().__init__()
        self.stream: Talk | None = None
        self.fails = False

    async def answer(self, talk: Talk) -> None:
        if talk.verb == "GET":
            self.stream = talk
            await talk.begin("text/event-stream")
            await talk.raw(b"event: endpoint\ndata: /messages\n\n")
            await talk.forever()
        elif talk.name != "messages":
            await talk.http(status="405 Method Not Allowed")
        elif talk.method == "tools/call" and self.fails:
            await talk.http(status="500 Oops")
        else:
            await talk.http(status="202 Accepted")
            if talk.id is not None and self.stream is not None:
                error = {"error": {"code": -32601, "message": "no"}}
                answer = error if talk.method == "server/discover" else {"result": due(talk)}
                await self.stream.event({"jsonrpc": "2.0", "id": talk.id, **answer})


async def test_an_older_server_is_asked_by_get_and_a_fault_costs_one_call() -> None:
    older = Older()
    async with running(older), tools(older.url) as some:
        assert (await called(some, message="hi")).output == "hi"
        older.fails = True
        failed = await called(some, message="lost")
        assert isinstance(failed.error, McpHttpError)
        assert failed.error.code == 500
        older.fails = False
        assert (await called(some, message="again")).output == "again"
        assert len(older.asked("tools/call")) == 3


async def test_the_name_in_the_url_is_the_certificates() -> None:
    server, trusting = contexts()
    async with serving(tls=server) as good:
        async with client(PATIENT, Egress(tls=trusting)) as mcp:
            declared = McpTool(server_label="s", server_url=f"https://localhost:{good.port}/good")
            assert (await called(mcp.begin("t", [declared]), message="hi")).output == "hi"
            other = McpTool(server_label="s", server_url=f"https://127.0.0.1:{good.port}/good")
            with pytest.raises(McpFailed, match=r"is not trusted|hung up"):
                await mcp.begin("t", [other]).list("s")
        assert sum(good.calls.values()) == 1


async def test_two_servers_with_tools_of_one_name_are_kept_apart() -> None:
    async with running() as first, running() as second, client() as mcp:
        declared = [McpTool(server_label=label, server_url=url) for label, url in (("a", first.url), ("b", second.url))]
        some = mcp.begin("tenant", declared)
        assert (await called(some, label="b", message="for b")).output == "for b"
        assert not first.talks
        assert len(second.asked("tools/call")) == 1
