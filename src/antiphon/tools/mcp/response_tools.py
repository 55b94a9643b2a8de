"""The MCP servers of one response: their tool lists, and the calls of their tools. Each call is sent at most once.

The result of a call, including an error that the server returns, becomes the call's item. Exceptions are errors of our
own. Text of a result is passed on unchanged. Every other block becomes one line of JSON in the item; models see images.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from antiphon.core.data_urls import UnreadableMedia, read_base64
from antiphon.core.deltas import Progress, ToolOutputContent
from antiphon.core.mcp_rules import is_allowed
from antiphon.errors import AntiphonError, McpFailed
from antiphon.limits import Limits
from antiphon.protocol.types import items as it
from antiphon.protocol.types.parts import InputImage, InputText
from antiphon.protocol.types.tools import McpTool
from antiphon.tools.base import DeltaSink, ModelToolCall, ResponseTool, ToolResult
from antiphon.tools.mcp.servers import McpServer, McpSettings, resolve_server
from antiphon.tools.mcp.session_pool import McpSessionPool
from antiphon.tools.untrusted_images import make_input_image

Json = dict[str, Any]

_TRUNCATED: Final = "\n[The output is cut off here: it has {size:,} bytes, and at most {most:,} are passed on.]"
_OMITTED: Final = "left out: {size:,} characters"
_MAX_INLINE_DATA: Final = 256  # characters of data that are always included


def render_output(result: Json, limit: int) -> str:
    """Return the output of the item. A result with structured content but no text is rendered as JSON."""
    blocks: Sequence[Json] = result.get("content") or ()
    lines = [_render_block(block, limit) for block in blocks]
    if "structuredContent" in result and not any(block["type"] == "text" for block in blocks):
        lines.append(_encode_json(result["structuredContent"]))
    return truncate("\n".join(lines), limit)


def render_model_output(result: Json, limit: int, limits: Limits) -> ToolOutputContent:
    """Return the output for the model if it contains images; "" if the item's output suffices."""
    parts: list[InputText | InputImage] = []
    remaining = limit
    for block in result.get("content") or ():
        image = _to_image(block, limits)
        text = "" if image else truncate(_render_block(block, 0), max(0, remaining))
        remaining -= len(text)
        parts.append(image or InputText(text=text))
    return parts if any(isinstance(part, InputImage) for part in parts) else ""


def trim_content(result: Json, limit: int) -> list[Json]:
    """Return the content of an error, with the same size limit."""
    blocks: Sequence[Json] = result.get("content") or ()
    trimmed: list[Json] = []
    for block in blocks:
        bounded = _omit_data(block, max(0, limit))
        if bounded.get("type") == "text":
            bounded["text"] = truncate(bounded["text"], max(0, limit))
        limit -= len(_encode_json(bounded))
        if limit < 0 and trimmed:
            break
        trimmed.append(bounded)
    return trimmed


def truncate(text: str, limit: int) -> str:
    if len(text) <= limit // 4:  # fits regardless of its characters: UTF-8 takes at most 4 bytes each
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= limit:
        return text
    return encoded[:limit].decode("utf-8", "ignore") + _TRUNCATED.format(size=len(encoded), most=limit)


def _render_block(block: Json, limit: int) -> str:
    text = block.get("text")
    return text if block["type"] == "text" and isinstance(text, str) else _encode_json(_omit_data(block, limit))


def _omit_data(block: Json, limit: int) -> Json:
    """Copy the block, without binary data that is larger than the limit."""
    result = dict(block)
    if isinstance(data := result.get("data"), str) and len(data) > max(limit, _MAX_INLINE_DATA):
        result["data"] = _OMITTED.format(size=len(data))
    resource = result.get("resource")
    if (
        isinstance(resource, dict)
        and isinstance(blob := resource.get("blob"), str)
        and len(blob) > max(limit, _MAX_INLINE_DATA)
    ):
        result["resource"] = {**resource, "blob": _OMITTED.format(size=len(blob))}
    return result


def _to_image(block: Json, limits: Limits) -> InputImage | None:
    """Return the image if it can be shown. Its type is detected from the data; the declared type is ignored."""
    if block["type"] != "image":
        return None
    try:
        return make_input_image(read_base64(block["data"], limits.image_bytes).body, limits)
    except UnreadableMedia:
        return None


def _encode_json(value: object) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")


_INVALID_PARAMS: Final = -32602
_NOT_RUN: Final = -32000
_PROGRESS_SECONDS: Final = 1.0  # between two progress deltas
_NOW: Final = 0.0  # maximum age of a tool list, in seconds


class McpTools(ResponseTool):
    """The MCP servers of one response. Their sessions stay in the pool for later responses."""

    def __init__(
        self, tenant: str, declared: Mapping[str, McpTool], settings: McpSettings, pool: McpSessionPool
    ) -> None:
        self._tenant = tenant
        self._declared = declared
        self._settings = settings
        self._pool = pool
        self._servers: dict[str, McpServer] = {}
        self._executed: set[str] = set()

    async def list_tools(self, label: str, max_age: float | None = None) -> it.McpListTools:
        """Return the allowed tools of a server as an item without an id. Raises McpFailed."""
        return it.McpListTools(server_label=label, tools=[*(await self._load_tools(label, max_age)).values()])

    async def get_definition(self, label: str, name: str) -> it.McpListedTool | None:
        """Return the server's current definition of a tool; None if there is no such tool or it is not allowed."""
        return (await self._load_tools(label, _NOW)).get(name)

    def get_server_address(self, label: str) -> str:
        """Return the URL or command of the server; an approval of the client is valid for this address."""
        server = self._resolve_server(label)
        return server.url or " ".join(server.command)

    def is_outdated(self, item: it.McpListTools) -> bool:
        """Return whether an earlier list is known to differ from the current one. Uses the cache only."""
        label = item.server_label
        if label not in self._declared or item.error:
            return False
        cached = self._pool.get_cached_tools(self._tenant, self._resolve_server(label))
        return cached is not None and [*self._filter_allowed(label, cached).values()] != item.tools

    @property
    def max_seconds(self) -> float:
        return self._settings.longest_seconds

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        if call.id in self._executed:
            raise McpFailed(f"The call {call.id} was run already.")
        self._executed.add(call.id)
        try:
            return self._to_result(call, await self._call_with_progress(call, emit))
        except McpFailed as error:
            return ToolResult(item=self._build_item(call, "failed", error=_to_item_error(error)))

    def make_failed_result(self, call: ModelToolCall, failure: AntiphonError) -> ToolResult:
        return ToolResult(
            item=self._build_item(call, "failed", error=it.McpProtocolError(code=_NOT_RUN, message=failure.message))
        )

    async def call_tool(
        self, label: str, name: str, arguments: Json, on_progress: Callable[[], None] = lambda: None
    ) -> Json:
        """Call a tool of a server, at most once, and return its result without secrets. Raises McpFailed."""
        server = self._resolve_server(label)
        if name not in await self._load_tools(label):
            raise McpFailed(f"{server.name} has no tool {name[:64]!r} that may be called.", rpc=_INVALID_PARAMS)
        return server.scrub_json(await self._pool.call(self._tenant, server, name, arguments, on_progress))

    async def _call_with_progress(self, call: ModelToolCall, emit: DeltaSink) -> Json:
        arguments, progress = _parse_arguments(call.arguments), asyncio.Event()
        reporter = asyncio.create_task(_report_progress(call, emit, progress))
        try:
            return await self.call_tool(call.namespace or "", call.name, arguments, progress.set)
        finally:
            reporter.cancel()
            await asyncio.wait([reporter])

    def _to_result(self, call: ModelToolCall, result: Json) -> ToolResult:
        max_bytes, limits = self._settings.output_bytes, self._settings.limits
        if result.get("isError"):
            return ToolResult(
                item=self._build_item(call, "failed", error=it.McpToolError(content=trim_content(result, max_bytes)))
            )
        output = render_output(result, max_bytes)
        return ToolResult(
            item=self._build_item(call, "completed", output=output),
            model_output=render_model_output(result, max_bytes, limits),
        )

    async def _load_tools(self, label: str, max_age: float | None = None) -> dict[str, it.McpListedTool]:
        seconds = self._settings.list_ttl_seconds if max_age is None else max_age
        return self._filter_allowed(
            label, await self._pool.list_tools(self._tenant, self._resolve_server(label), seconds)
        )

    def _filter_allowed(self, label: str, tools: Sequence[it.McpListedTool]) -> dict[str, it.McpListedTool]:
        spec = self._settings.servers.get(label) if self._resolve_server(label).is_configured else None
        allowed_names = spec.allowed_tools if spec is not None else None
        usable = [tool for tool in tools if allowed_names is None or tool.name in allowed_names]
        return {tool.name: tool for tool in usable if is_allowed(self._declared[label], tool)}

    def _resolve_server(self, label: str) -> McpServer:
        if label not in self._declared:
            raise McpFailed(f"No MCP server {label[:64]!r} is declared.", rpc=_INVALID_PARAMS)
        if label not in self._servers:
            self._servers[label] = resolve_server(self._declared[label], self._settings)
        return self._servers[label]

    def _build_item(self, call: ModelToolCall, status: Any, **fields: Any) -> it.McpCall:
        return it.McpCall(
            status=status,
            server_label=call.namespace or "",
            name=call.name,
            arguments=call.arguments,
            approval_request_id=call.approval_id,
            **fields,
        )


async def _report_progress(call: ModelToolCall, emit: DeltaSink, progress: asyncio.Event) -> None:
    """Emit progress at a limited rate, since a server may report it as often as it likes."""
    while True:
        await progress.wait()
        progress.clear()
        await emit(Progress(call.key, "progress"))
        await asyncio.sleep(_PROGRESS_SECONDS)


def _parse_arguments(text: str) -> Json:
    try:
        arguments = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise McpFailed("The arguments of the call are not a JSON object.", rpc=_INVALID_PARAMS)
    return arguments


def _to_item_error(error: McpFailed) -> it.McpProtocolError | it.McpHttpError:
    if error.http is not None:
        return it.McpHttpError(code=error.http, message=error.message)
    return it.McpProtocolError(code=error.rpc, message=error.message)
