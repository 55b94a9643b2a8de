from typing import Any

import pytest

from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create, encode
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tools import McpTool
from antiphon.service.runs import background
from antiphon.service.runs.background import Entrusted


def asked(**fields: Any) -> CreateResponse:
    tool = {"type": "mcp", "server_label": "s", "server_url": "https://mcp.example", **fields}
    return decode_create(encode({"model": "m", "input": "hi", "tools": [tool]}), Limits()).request


def secret(request: CreateResponse) -> str | None:
    (tool,) = request.tools
    assert isinstance(tool, McpTool)
    return tool.credentials.authorization


@pytest.mark.shows("E.8")
def test_a_queued_response_gets_back_what_its_client_entrusted_once() -> None:
    held = Entrusted()
    held.hold("resp_1", asked(authorization="CANARY"))
    for response_id, expected in (("resp_2", None), ("resp_1", "CANARY"), ("resp_1", None)):
        request = asked()
        held.give_back(response_id, request)
        assert secret(request) == expected


def test_only_so_many_are_held_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MOST", 2)
    held = Entrusted()
    for number in range(3):
        held.hold(f"resp_{number}", asked(authorization=str(number)))
    found = []
    for number in range(3):
        request = asked()
        held.give_back(f"resp_{number}", request)
        found.append(secret(request))
    assert found == [None, "1", "2"]
