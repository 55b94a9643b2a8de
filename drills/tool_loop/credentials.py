"""Client credentials for an MCP server must reach that server and appear nowhere else.

Random credentials are searched for in several encodings: in all answers to clients, whatever fails, in logs of level
debug, in the metrics, and in each file or row that the server has written, also after a kill.
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

from drills.harness.client import DISCONNECT_ERRORS, Client
from drills.harness.findings import Figure, Findings
from drills.harness.process import Process, open_servers
from drills.harness.storage_locations import StorageKind as PlaceKind
from drills.harness.storage_locations import StorageLocation, open_storage
from drills.tool_loop.mirror_server import BEHAVIOURS, MirrorServer, run_mirror

Json = dict[str, Any]
_LABEL = "mirror"
_TIMEOUT_SECONDS = 20.0


class Credential(Struct, frozen=True):
    """One form of credential: the fields of the tool that carry it, and the secret that must not be found."""

    name: str
    fields: Json
    secret: str


def make_credentials() -> list[Credential]:
    tokens = [f"canary{secrets.token_hex(12)}" for _ in range(5)]
    basic = b64encode(f"user:{tokens[1]}".encode()).decode()
    return [
        Credential("authorization", {"authorization": tokens[0]}, tokens[0]),
        Credential("basic", {"authorization": f"Basic {basic}"}, tokens[1]),
        Credential("bearer in headers", {"headers": {"Authorization": f"Bearer {tokens[2]}"}}, tokens[2]),
        Credential("header", {"headers": {"X-Api-Key": tokens[3]}}, tokens[3]),
        Credential("cookie", {"headers": {"Cookie": f"session={tokens[4]}; theme=dark"}}, tokens[4]),
    ]


def encode_variants(secret: str) -> list[bytes]:
    """Return the secret in all searched encodings."""
    plain = secret.encode()
    base64_variants = [b64encode(b"\0" * shift + plain)[4:-4] for shift in range(3)]
    return [plain, plain.upper(), plain[::-1], plain.hex().encode(), quote(secret).encode(), *base64_variants]


class CollectedOutput:
    """All output of the server, by source."""

    def __init__(self) -> None:
        self._contents: dict[str, list[bytes]] = {}

    def add(self, source: str, content: bytes) -> None:
        self._contents.setdefault(source, []).append(content)

    def find_leaks(self, secret: str) -> Iterator[str]:
        for source, contents in self._contents.items():
            for content in contents:
                for variant in encode_variants(secret):
                    if (at := content.find(variant)) >= 0:
                        yield f"{source}: …{content[max(0, at - 80) : at + 60]!r}"

    @property
    def total_bytes(self) -> int:
        return sum(len(content) for contents in self._contents.values() for content in contents)


async def secret(
    kind: PlaceKind | StorageLocation, findings: Findings, every: int = 1, log_formats: Sequence[str] = ("text", "json")
) -> None:
    """Run the drill with every `every`-th failure scenario."""
    with open_storage(kind) as storage:
        async with run_mirror() as mirror:
            drills = [_Drill(storage, mirror, findings, log_format) for log_format in log_formats]
            for drill in drills:
                await drill.run(every)
    findings.add_figure(Figure("responses", sum(len(drill.ids) for drill in drills)))
    findings.add_figure(Figure("MB looked through", sum(drill.outputs.total_bytes for drill in drills) / 1e6))


class _Drill:
    def __init__(self, storage: StorageLocation, mirror: MirrorServer, findings: Findings, log_format: str) -> None:
        self._storage = storage
        self._mirror = mirror
        self._findings = findings
        self.outputs = CollectedOutput()
        self._credentials = make_credentials()
        self._operator_secret = f"canary{secrets.token_hex(12)}"
        self.ids: list[str] = []
        self._config = {
            "log_level": "debug", "log_format": log_format, "lease_seconds": 1.0, "tool_timeout": 1.0,
            "tool_list_timeout": 2.0, "fake_rate": 500.0,
            "mcp": [{"label": "own", "url": mirror.url("good"), "authorization": self._operator_secret}],
        }  # fmt: skip

    async def run(self, every: int) -> None:
        with open_servers(self._storage, self._config, mark_answers=False) as processes:
            process = await processes.start()
            await self._send_requests(process, every)
            await self._send_invalid_requests(process.client, self._credentials[:: min(every, 5)])
            await self._kill_during_call(process)
            self.outputs.add("logs", process.read_output().encode())
            self._collect_files("files after a kill")
            processes.discard(process)
            process = await processes.start()
            await self._read_after_restart(process.client)
            await process.stop()
            self.outputs.add("logs", process.read_output().encode())
            processes.discard(process)
        await self._collect_rows()
        self._collect_files("files after a restart")
        self._report_leaks(processes.tracebacks)

    # ---- requests

    async def _send_requests(self, process: Process, every: int) -> None:
        client = process.client
        for number, credential in enumerate(self._credentials):
            for at, path in enumerate(_list_paths()):
                if path == "good" or (at + number) % every == 0:
                    await self._try_path(client, credential, path, at)
            await self._approve_call(client, credential)
            await self._use_conversation(client, credential)
        await self._create_response(client, {"type": "mcp", "server_label": "own", "require_approval": "never"}, "good")

    async def _try_path(self, client: Client, credential: Credential, path: str, at: int) -> None:
        tool = self._build_tool(credential, path)
        for options in ({}, {"stream": True}, {"background": True, "stream": True}, {"background": True}):
            if path == "good" or at % 4 == len(options):
                await self._create_response(client, tool, path, **options)
        self._findings.add_trials()

    def _build_tool(self, credential: Credential, path: str, approval: str = "never") -> Json:
        url = self._mirror.url(path)
        return {
            "type": "mcp",
            "server_label": _LABEL,
            "server_url": url,
            "require_approval": approval,
            **credential.fields,
        }

    async def _create_response(self, client: Client, tool: Json, path: str, **fields: Any) -> Json:
        """Create a response and return its final state; {} if the request was rejected."""
        body = {"model": "fake", "input": f"try {path}", "tools": [tool], **fields}
        async with (
            asyncio.timeout(_TIMEOUT_SECONDS),
            client.open("POST", "/v1/responses", body, secrets.token_hex(8)) as stream,
        ):
            if stream.is_event_stream:
                await stream.read()
                for frame in stream.frames:
                    self.outputs.add(f"stream {path}", frame)
                response: Json = msgspec.json.decode(stream.frames[-1].partition(b"\ndata: ")[2])["response"]
            else:
                content = await stream.read_body()
                self.outputs.add(f"answer {path}", content)
                response = msgspec.json.decode(content)
        if "id" not in response:
            return {}
        self.ids.append(response["id"])
        while response["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0.05)
            answer = await client.get(f"/v1/responses/{response['id']}")
            self.outputs.add(f"GET {path}", answer.body)
            response = answer.json()
        return response

    async def _approve_call(self, client: Client, credential: Credential) -> None:
        tool = self._build_tool(credential, "good", "always")
        first = await self._create_response(client, tool, "approval")
        approval_request = next(item for item in first["output"] if item["type"] == "mcp_approval_request")
        answer = {"type": "mcp_approval_response", "approval_request_id": approval_request["id"], "approve": True}
        for _ in range(2):
            await self._create_response(client, tool, "approved", input=[answer], previous_response_id=first["id"])

    async def _use_conversation(self, client: Client, credential: Credential) -> None:
        created = await client.post({}, "/v1/conversations")
        conversation = created.json()["id"]
        await self._create_response(
            client, self._build_tool(credential, "good"), "conversation", conversation=conversation
        )
        items = await client.get(f"/v1/conversations/{conversation}/items")
        self.outputs.add("conversation items", items.body)

    async def _send_invalid_requests(self, client: Client, credentials: Sequence[Credential]) -> None:
        """Send requests that the server rejects; the errors must not quote the credentials."""
        for credential in credentials:
            for tool in _invalid_tools(self._build_tool(credential, "good"), credential.secret):
                for path in ("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"):
                    answer = await client.post({"model": "fake", "input": "x", "tools": [tool]}, path)
                    self.outputs.add(f"{path} rejects", answer.body)
            broken = msgspec.json.encode(self._build_tool(credential, "good")).decode()
            answer = await client.post({"model": "fake", "input": [broken, {"type": "no such thing"}]})
            for path in ("/v1/responses/input_tokens", "/v1/responses/compact", "/v1/chat/completions"):
                body = {"model": "fake", "input": "x", "tools": [self._build_tool(credential, "good")]}
                self.outputs.add(path, (await client.post(body, path)).body)
        self.outputs.add("metrics", (await client.get("/metrics")).body)
        self.outputs.add("capabilities", (await client.get("/v1/capabilities")).body)

    async def _kill_during_call(self, process: Process) -> None:
        self._mirror.called.clear()
        requests = [
            asyncio.create_task(self._read_until_cut(process.client, self._build_tool(credential, "call.silence")))
            for credential in self._credentials
        ]
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await self._mirror.called.wait()
        process.kill()
        await asyncio.gather(*requests)

    async def _read_until_cut(self, client: Client, tool: Json) -> None:
        body = {"model": "fake", "input": "die", "tools": [tool], "background": True, "stream": True}
        with contextlib.suppress(*DISCONNECT_ERRORS):
            async with client.open("POST", "/v1/responses", body) as stream:
                try:
                    await stream.read()
                finally:
                    for frame in stream.frames:
                        self.outputs.add("a stream that was cut", frame)
                    if stream.frames:
                        first = msgspec.json.decode(stream.frames[0].partition(b"\ndata: ")[2])
                        self.ids.append(first["response"]["id"])

    async def _read_after_restart(self, client: Client) -> None:
        for response_id in self.ids:
            path, status = f"/v1/responses/{response_id}", "in_progress"
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                while status in ("queued", "in_progress"):
                    answer = await client.get(path)
                    status = answer.json().get("status", "")
                    await asyncio.sleep(0 if status not in ("queued", "in_progress") else 0.1)
            self.outputs.add("GET after a restart", answer.body)
            self.outputs.add("input items", (await client.get(f"{path}/input_items")).body)
            for frame in (await client.replay(response_id)).frames:
                self.outputs.add("replay", frame)
        self.outputs.add("metrics", (await client.get("/metrics")).body)

    # ---- search

    def _collect_files(self, source: str) -> None:
        for file in self._storage.folder.rglob("*"):
            if file.is_file():
                self.outputs.add(f"{source}: {file.name}", file.read_bytes())

    async def _collect_rows(self) -> None:
        """Collect all rows of PostgreSQL."""
        if "://" not in self._storage.store:
            return
        connection = await asyncpg.connect(self._storage.store)
        try:
            tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            for (table,) in tables:
                for (row,) in await connection.fetch(f'SELECT t::text FROM "{table}" t'):
                    self.outputs.add(f"table {table}", row.encode())
                    self.outputs.add(f"table {table}", _decode_hex(row))
        finally:
            await connection.close()

    def _report_leaks(self, tracebacks: list[str]) -> None:
        received = " ".join(self._mirror.credentials).encode()
        for credential in [*self._credentials, Credential("operator", {}, self._operator_secret)]:
            if not any(variant in received for variant in encode_variants(credential.secret)):
                self._findings.add_violation(f"{credential.name} did not reach the MCP server")
            self._findings.add_violations(
                f"{credential.name} is in {found}" for found in self.outputs.find_leaks(credential.secret)
            )
        self._findings.add_violations(f"a server wrote a traceback:\n{text}" for text in tracebacks)


def _list_paths() -> list[str]:
    return ["good", *(f"{stage}.{behaviour}" for behaviour in BEHAVIOURS for stage in ("list", "call"))]


def _invalid_tools(tool: Json, secret: str) -> Iterator[Json]:
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


def _decode_hex(row: str) -> bytes:
    """Decode the values that PostgreSQL shows as hexadecimal digits."""
    found = bytearray()
    for piece in row.split("\\x")[1:]:
        digits = piece[: next((at for at, char in enumerate(piece) if char not in "0123456789abcdef"), len(piece))]
        found += bytes.fromhex(digits[: len(digits) // 2 * 2])
    return bytes(found)
