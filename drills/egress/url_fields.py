"""All fields that accept a URL, in requests and in model output, with checks for rejected and accepted URLs."""

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct, json

from antiphon.core.prompt import CallPiece, Chunk
from antiphon.engines.fake import FakeEngine
from drills.harness.client import Answer

Json = dict[str, Any]
Page = Literal["/picture", "/mcp", "/page"]


class UrlField(Struct, frozen=True, kw_only=True):
    """A field that accepts a URL: path and body of its request. `script` sets the model output that contains the
    URL.
    """

    name: str
    path: str = "/v1/responses"
    body: Callable[[str], Json]
    page: Page = "/picture"  # path on the legitimate host that suits the field
    script: Callable[[FakeEngine, str], None] | None = None

    def find_problem(self, answer: Answer) -> str:
        """Return what is wrong with the answer to a forbidden URL; empty if it was rejected properly."""
        if answer.status == 400:
            return "" if answer.error().get("message") else "was rejected without an error message"
        if answer.status != 200 or self.page == "/picture":
            return f"was answered with {answer.status}"
        if self.page == "/mcp":
            return "" if _tool_list(answer).get("error") else "was listed, or rejected without an error"
        return "" if _last_page_status(answer) == "failed" else f"was opened: {answer.body[:300]!r}"

    def is_accepted(self, answer: Answer) -> bool:
        """Return whether a permitted URL was fetched."""
        if self.page == "/mcp":
            return answer.status == 200 and bool(_tool_list(answer).get("tools"))
        if self.page == "/page":
            return answer.status == 200 and _last_page_status(answer) == "completed"
        if "file" in self.name or "document" in self.name:  # the image of the legitimate host is rejected as a document
            return answer.status == 400 and b"picture" in answer.body
        return answer.status == 200


def _items(answer: Answer, kind: str) -> list[Json]:
    return [item for item in answer.json()["output"] if item["type"] == kind]


def _tool_list(answer: Answer) -> Json:
    return next(iter(_items(answer, "mcp_list_tools")), {})


def _last_page_status(answer: Answer) -> str:
    """Return the status of the last web search call."""
    calls = _items(answer, "web_search_call")
    return str(calls[-1]["status"]) if calls else ""


def _response(*items: Json) -> Json:
    return {"model": "fake", "input": [*items], "store": False}


def _user(part: Json) -> Json:
    return {"role": "user", "content": [part]}


def _image(url: str) -> Json:
    return {"type": "input_image", "image_url": url}


def _file(url: str) -> Json:
    return {"type": "input_file", "file_url": url}


def _output(kind: str, output: Any, **call: Any) -> Json:
    return _response(
        {"type": kind, "call_id": "c", **call}, {"type": f"{kind}_output", "call_id": "c", "output": output}
    )


def _chat(part: Json) -> Json:
    return {"model": "fake", "messages": [_user(part)], "max_tokens": 16}


def _mcp(url: str, **more: Any) -> Json:
    server = {"type": "mcp", "server_label": "s", "server_url": url, "require_approval": "never", **more}
    return {"model": "fake", "input": "list", "store": False, "tools": [server], "tool_choice": "none"}


def _web(url: str) -> Json:
    return {"model": "fake", "input": "open it", "store": False, "tools": [{"type": "web_search"}]}


def _call(name: str, **arguments: Any) -> Chunk:
    return Chunk(calls=(CallPiece(index=0, name=name, arguments=json.encode(arguments).decode()),))


def _script_open(engine: FakeEngine, url: str) -> None:
    engine.says(_call("web_open", id=url))
    engine.answers()


def _script_search_and_open(engine: FakeEngine, url: str) -> None:
    """Script a search, whose only result is the URL in the query, and the opening of that result."""
    engine.says(_call("web_search", query=url.encode("utf-8", "surrogatepass").hex()))
    engine.says(_call("web_open", id=0, cursor=0))
    engine.answers()


_WAIT = {"type": "wait"}
FIELDS = (
    UrlField(name="input_image.image_url", body=lambda url: _response(_user(_image(url)))),
    UrlField(name="input_file.file_url", body=lambda url: _response(_user(_file(url)))),
    UrlField(
        name="function_call_output image",
        body=lambda url: _output("function_call", [_image(url)], name="f", arguments="{}"),
    ),
    UrlField(
        name="function_call_output file",
        body=lambda url: _output("function_call", [_file(url)], name="f", arguments="{}"),
    ),
    UrlField(
        name="custom_tool_call_output image",
        body=lambda url: _output("custom_tool_call", [_image(url)], name="f", input=""),
    ),
    UrlField(
        name="computer_call_output",
        body=lambda url: _output("computer_call", {"type": "computer_screenshot", "image_url": url}, action=_WAIT),
    ),
    UrlField(
        name="input_tokens", path="/v1/responses/input_tokens",
        body=lambda url: {"model": "fake", "input": [_user(_image(url))]},
    ),
    UrlField(
        name="chat image_url", path="/v1/chat/completions",
        body=lambda url: _chat({"type": "image_url", "image_url": {"url": url}}),
    ),
    UrlField(
        name="messages image", path="/v1/messages",
        body=lambda url: _chat({"type": "image", "source": {"type": "url", "url": url}}),
    ),
    UrlField(
        name="messages document", path="/v1/messages",
        body=lambda url: _chat({"type": "document", "source": {"type": "url", "url": url}}),
    ),
)  # fmt: skip
SERVERS = (
    UrlField(name="mcp.server_url", body=_mcp, page="/mcp"),
    UrlField(name="mcp.server_url with a secret", body=lambda url: _mcp(url, authorization="canary-ab12"), page="/mcp"),
)
PAGES = (
    UrlField(name="web_open", body=_web, page="/page", script=_script_open),
    UrlField(name="web_search result", body=_web, page="/page", script=_script_search_and_open),
)
