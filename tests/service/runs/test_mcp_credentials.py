"""`CredentialCache`: MCP credentials of queued responses are held in memory and restored once."""

from typing import Any

import pytest

from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create, encode
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tools import McpTool
from antiphon.service.runs import mcp_credentials
from antiphon.service.runs.mcp_credentials import CredentialCache


def decode_request(**fields: Any) -> CreateResponse:
    tool = {"type": "mcp", "server_label": "s", "server_url": "https://mcp.example", **fields}
    return decode_create(encode({"model": "m", "input": "hi", "tools": [tool]}), Limits()).request


def get_authorization(request: CreateResponse) -> str | None:
    (tool,) = request.tools
    assert isinstance(tool, McpTool)
    return tool.credentials.authorization


@pytest.mark.shows("E.8")
def test_a_queued_response_gets_its_mcp_credentials_back_once() -> None:
    cache = CredentialCache()
    cache.store("resp_1", decode_request(authorization="CANARY"))
    for response_id, expected in (("resp_2", None), ("resp_1", "CANARY"), ("resp_1", None)):
        request = decode_request()
        cache.restore(response_id, request)
        assert get_authorization(request) == expected


def test_the_credential_cache_evicts_the_oldest_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_credentials, "MAX_RESPONSES", 2)
    cache = CredentialCache()
    for number in range(3):
        cache.store(f"resp_{number}", decode_request(authorization=str(number)))
    found = []
    for number in range(3):
        request = decode_request()
        cache.restore(f"resp_{number}", request)
        found.append(get_authorization(request))
    assert found == [None, "1", "2"]
