"""Where do a client's credentials for an MCP server get to? To that server, and nowhere else.

They are made up, and looked for afterwards, in every spelling: in all that clients are answered, whatever goes wrong,
in the logs at their most talkative, in the metrics, and in each file or row that the server has written, also after it
was killed.
"""

import asyncio
import contextlib
import secrets
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import asyncpg
import msgspec
from msgspec import Struct

from drills.harness.client import GONE, Client
from drills.harness.findings import Figure, Findings
from drills.harness.process import Process, servers
from drills.harness.storage_locations import Kind as PlaceKind
from drills.harness.storage_locations import Place, place
from drills.tool_loop.mirror_server import DEEDS, Mirror, mirroring

Json = dict[str, Any]
_LABEL = "mirror"
_SECONDS = 20.0


class Spelling(Struct, frozen=True):
    """One way to say who one is: fields of the tool, and what must not be found."""

    name: str
    fields: Json
    secret: str


def spellings() -> list[Spelling]:
    made = [f"canary{secrets.token_hex(12)}" for _ in range(5)]
    basic = b64encode(f"user:{made[1]}".encode()).decode()
    return [
        Spelling("authorization", {"authorization": made[0]}, made[0]),
        Spelling("basic", {"authorization": f"Basic {basic}"}, made[1]),
        Spelling("bearer in headers", {"headers": {"Authorization": f"Bearer {made[2]}"}}, made[2]),
        Spelling("header", {"headers": {"X-Api-Key": made[3]}}, made[3]),
        Spelling("cookie", {"headers": {"Cookie": f"session={made[4]}; theme=dark"}}, made[4]),
    ]


def traces(secret: str) -> list[bytes]:
    """What a secret looks like, wherever it was put."""
    plain = secret.encode()
    packed = [b64encode(b"\0" * shift + plain)[4:-4] for shift in range(3)]
    return [plain, plain.upper(), plain[::-1], plain.hex().encode(), quote(secret).encode(), *packed]


class Heard:
    """All that came out of the server, by where."""

    def __init__(self) -> None:
        self._said: dict[str, list[bytes]] = {}

    def take(self, where: str, said: bytes) -> None:
        self._said.setdefault(where, []).append(said)

    def found(self, secret: str) -> Iterator[str]:
        for where, said in self._said.items():
            for one in said:
                for trace in traces(secret):
                    if (at := one.find(trace)) >= 0:
                        yield f"{where}: …{one[max(0, at - 80) : at + 60]!r}"

    @property
    def bytes(self) -> int:
        return sum(len(one) for said in self._said.values() for one in said)


async def secret(
    kind: PlaceKind | Place, findings: Findings, every: int = 1, log_formats: Sequence[str] = ("text", "json")
) -> None:
    """`every`: of so many ways to fail one is tried."""
    with place(kind) as where:
        async with mirroring() as mirror:
            done = [_Drill(where, mirror, findings, log_format) for log_format in log_formats]
            for drill in done:
                await drill.carry_out(every)
    findings.figure(Figure("responses", sum(len(drill.ids) for drill in done)))
    findings.figure(Figure("MB looked through", sum(drill.heard.bytes for drill in done) / 1e6))


class _Drill:
    def __init__(self, where: Place, mirror: Mirror, findings: Findings, log_format: str) -> None:
        self._where = where
        self._mirror = mirror
        self._findings = findings
        self.heard = Heard()
        self._spelled = spellings()
        self._operators = f"canary{secrets.token_hex(12)}"
        self.ids: list[str] = []
        self._config = {
            "log_level": "debug", "log_format": log_format, "lease_seconds": 1.0, "tool_timeout": 1.0,
            "tool_list_timeout": 2.0, "fake_rate": 500.0,
            "mcp": [{"label": "own", "url": mirror.url("good"), "authorization": self._operators}],
        }  # fmt: skip

    async def carry_out(self, every: int) -> None:
        with servers(self._where, self._config, marks=False) as processes:
            process = await processes.start()
            await self._work(process, every)
            await self._wrong_requests(process.client, self._spelled[:: min(every, 5)])
            await self._die_in_a_call(process)
            self.heard.take("logs", process.output().encode())
            self._look_at_files("files after a kill")
            processes.gone(process)
            process = await processes.start()
            await self._read_again(process.client)
            await process.stop()
            self.heard.take("logs", process.output().encode())
            processes.gone(process)
        await self._look_at_rows()
        self._look_at_files("files after a restart")
        self._judge(processes.tracebacks)

    # ---- what is done

    async def _work(self, process: Process, every: int) -> None:
        client = process.client
        for number, spelled in enumerate(self._spelled):
            for at, path in enumerate(_paths()):
                if path == "good" or (at + number) % every == 0:
                    await self._asked(client, spelled, path, at)
            await self._approved(client, spelled)
            await self._conversed(client, spelled)
        await self._response(client, {"type": "mcp", "server_label": "own", "require_approval": "never"}, "good")

    async def _asked(self, client: Client, spelled: Spelling, path: str, at: int) -> None:
        tool = self._tool(spelled, path)
        for ways in ({}, {"stream": True}, {"background": True, "stream": True}, {"background": True}):
            if path == "good" or at % 4 == len(ways):
                await self._response(client, tool, path, **ways)
        self._findings.tried()

    def _tool(self, spelled: Spelling, path: str, approval: str = "never") -> Json:
        url = self._mirror.url(path)
        return {
            "type": "mcp",
            "server_label": _LABEL,
            "server_url": url,
            "require_approval": approval,
            **spelled.fields,
        }

    async def _response(self, client: Client, tool: Json, path: str, **more: Any) -> Json:
        """As it is in the end; {} for what has none."""
        body = {"model": "fake", "input": f"try {path}", "tools": [tool], **more}
        async with (
            asyncio.timeout(_SECONDS),
            client.open("POST", "/v1/responses", body, secrets.token_hex(8)) as stream,
        ):
            if stream.streams:
                await stream.read()
                for frame in stream.frames:
                    self.heard.take(f"stream {path}", frame)
                found: Json = msgspec.json.decode(stream.frames[-1].partition(b"\ndata: ")[2])["response"]
            else:
                said = await stream.body()
                self.heard.take(f"answer {path}", said)
                found = msgspec.json.decode(said)
        if "id" not in found:
            return {}
        self.ids.append(found["id"])
        while found["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0.05)
            answer = await client.get(f"/v1/responses/{found['id']}")
            self.heard.take(f"GET {path}", answer.body)
            found = answer.json()
        return found

    async def _approved(self, client: Client, spelled: Spelling) -> None:
        tool = self._tool(spelled, "good", "always")
        first = await self._response(client, tool, "approval")
        asked = next(item for item in first["output"] if item["type"] == "mcp_approval_request")
        answer = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
        for _ in range(2):
            await self._response(client, tool, "approved", input=[answer], previous_response_id=first["id"])

    async def _conversed(self, client: Client, spelled: Spelling) -> None:
        made = await client.post({}, "/v1/conversations")
        conversation = made.json()["id"]
        await self._response(client, self._tool(spelled, "good"), "conversation", conversation=conversation)
        items = await client.get(f"/v1/conversations/{conversation}/items")
        self.heard.take("conversation items", items.body)

    async def _wrong_requests(self, client: Client, chosen: Sequence[Spelling]) -> None:
        """Of which the server complains; it must not quote."""
        for spelled in chosen:
            for tool in _wrong_tools(self._tool(spelled, "good"), spelled.secret):
                for path in ("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"):
                    answer = await client.post({"model": "fake", "input": "x", "tools": [tool]}, path)
                    self.heard.take(f"{path} refuses", answer.body)
            broken = msgspec.json.encode(self._tool(spelled, "good")).decode()
            answer = await client.post({"model": "fake", "input": [broken, {"type": "no such thing"}]})
            for path in ("/v1/responses/input_tokens", "/v1/responses/compact", "/v1/chat/completions"):
                body = {"model": "fake", "input": "x", "tools": [self._tool(spelled, "good")]}
                self.heard.take(path, (await client.post(body, path)).body)
        self.heard.take("metrics", (await client.get("/metrics")).body)
        self.heard.take("capabilities", (await client.get("/v1/capabilities")).body)

    async def _die_in_a_call(self, process: Process) -> None:
        self._mirror.called.clear()
        asking = [
            asyncio.create_task(self._cut(process.client, self._tool(spelled, "call.silence")))
            for spelled in self._spelled
        ]
        async with asyncio.timeout(_SECONDS):
            await self._mirror.called.wait()
        process.kill()
        await asyncio.gather(*asking)

    async def _cut(self, client: Client, tool: Json) -> None:
        body = {"model": "fake", "input": "die", "tools": [tool], "background": True, "stream": True}
        with contextlib.suppress(*GONE):
            async with client.open("POST", "/v1/responses", body) as stream:
                try:
                    await stream.read()
                finally:
                    for frame in stream.frames:
                        self.heard.take("a stream that was cut", frame)
                    if stream.frames:
                        first = msgspec.json.decode(stream.frames[0].partition(b"\ndata: ")[2])
                        self.ids.append(first["response"]["id"])

    async def _read_again(self, client: Client) -> None:
        for one in self.ids:
            path, status = f"/v1/responses/{one}", "in_progress"
            async with asyncio.timeout(_SECONDS):
                while status in ("queued", "in_progress"):
                    answer = await client.get(path)
                    status = answer.json().get("status", "")
                    await asyncio.sleep(0 if status not in ("queued", "in_progress") else 0.1)
            self.heard.take("GET after a restart", answer.body)
            self.heard.take("input items", (await client.get(f"{path}/input_items")).body)
            for frame in (await client.replay(one)).frames:
                self.heard.take("replay", frame)
        self.heard.take("metrics", (await client.get("/metrics")).body)

    # ---- where it is looked for

    def _look_at_files(self, where: str) -> None:
        for file in self._where.folder.rglob("*"):
            if file.is_file():
                self.heard.take(f"{where}: {file.name}", file.read_bytes())

    async def _look_at_rows(self) -> None:
        """Of PostgreSQL."""
        if "://" not in self._where.store:
            return
        connection = await asyncpg.connect(self._where.store)
        try:
            tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            for (table,) in tables:
                for (row,) in await connection.fetch(f'SELECT t::text FROM "{table}" t'):
                    self.heard.take(f"table {table}", row.encode())
                    self.heard.take(f"table {table}", _bytes_in(row))
        finally:
            await connection.close()

    def _judge(self, tracebacks: list[str]) -> None:
        told = " ".join(self._mirror.told).encode()
        for spelled in [*self._spelled, Spelling("the operator's", {}, self._operators)]:
            if not any(trace in told for trace in traces(spelled.secret)):
                self._findings.violated(f"{spelled.name} did not get to the MCP server itself")
            self._findings.all_violated(f"{spelled.name} is in {found}" for found in self.heard.found(spelled.secret))
        self._findings.all_violated(f"a server wrote a traceback:\n{text}" for text in tracebacks)


def _paths() -> list[str]:
    return ["good", *(f"{stage}.{deed}" for deed in DEEDS for stage in ("list", "call"))]


def _wrong_tools(tool: Json, secret: str) -> Iterator[Json]:
    yield {**tool, "server_label": ["x"]}
    yield {**tool, "require_approval": "perhaps"}
    yield {**tool, "authorization": {"token": secret}}
    yield {**tool, "authorization": [secret]}
    yield {**tool, "authorization": f"{secret}\n"}
    yield {**tool, "authorization": f"{secret}é"}
    yield {**tool, "headers": {"Host": secret}}
    yield {**tool, "headers": {"no name": secret}}
    yield {**tool, "headers": {"X-A": f"{secret}\r\nX-B: 1"}}
    yield {**tool, "headers": {"X-A": [secret]}}
    yield {**tool, "headers": {"X-A": secret, "x-a": secret}}
    yield {**tool, "headers": {"Authorization": secret}, "authorization": secret}
    yield {**tool, "headers": [secret]}
    yield {**tool, "headers": secret}
    yield {**tool, "headers": {"X-A": secret * 4000}}
    yield {**tool, "connector_id": "connector_dropbox"}
    yield {**tool, "server_url": f"http://user:{secret}@127.0.0.1:9/"}
    yield {**tool, "server_url": "ftp://127.0.0.1/"}
    yield {key: value for key, value in tool.items() if key != "server_url"}


def _bytes_in(row: str) -> bytes:
    """Those that PostgreSQL shows as hexadecimal digits."""
    found = bytearray()
    for piece in row.split("\\x")[1:]:
        digits = piece[: next((at for at, char in enumerate(piece) if char not in "0123456789abcdef"), len(piece))]
        found += bytes.fromhex(digits[: len(digits) // 2 * 2])
    return bytes(found)
