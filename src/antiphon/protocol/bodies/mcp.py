"""Bodies of the routes that try MCP servers."""

from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import RequestDecoder, decode_object
from antiphon.protocol.decoding.normalise import drop_nulls, filter_objects
from antiphon.protocol.types.operations.mcp import CallMcpTool, ListMcpTools
from antiphon.protocol.types.tools import Json


def _normalise(body: Json) -> None:
    for holder in filter_objects([body, body.get("server")]):
        drop_nulls(holder)


_listings = RequestDecoder(ListMcpTools, _normalise)
_calls = RequestDecoder(CallMcpTool, _normalise)


def decode_listing(body: bytes, limits: Limits) -> tuple[ListMcpTools, list[str]]:
    return _listings.convert(decode_object(body, limits), len(body), limits)


def decode_call(body: bytes, limits: Limits) -> tuple[CallMcpTool, list[str]]:
    return _calls.convert(decode_object(body, limits), len(body), limits)
