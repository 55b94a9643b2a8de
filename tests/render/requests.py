"""Requests for the tests of render/, decoded as they come over the wire."""

from typing import Any

from msgspec.json import encode

from antiphon.core.history.history import make_history
from antiphon.core.prompt import Json
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.types.request import CreateResponse
from antiphon.render.attachments import Attached, FileSource, ImageSource, Source
from antiphon.render.messages import Rendered, render_chat

ALL = frozenset({"tools", "reasoning.effort", "input_image", "input_audio", "developer"})


def request(**fields: Any) -> CreateResponse:
    return decode_create(encode({"model": "m", "input": "hi", **fields}), Limits()).request


def rendered(honours: frozenset[str] = ALL, **fields: Any) -> Rendered:
    """With everything that it shows, as if it had been brought."""
    asked = request(**fields)
    attached = Attached()
    history = make_history((), asked.input)
    made = render_chat(history, asked, honours, attached)
    if not attached.wanted:
        return made
    attached.found, attached.wanted = {source: brought(source) for source in attached.wanted}, {}
    made = render_chat(history, asked, honours, attached)
    assert not attached.wanted
    return made


def brought(source: Source) -> str:
    match source:
        case ImageSource(url):
            return f"seen:{url}"
        case FileSource(name, data, url):
            return f"[{name}] {data or url}"


def messages(*items: Json, honours: frozenset[str] = ALL, **fields: Any) -> list[Json]:
    return list(rendered(honours, input=list(items), **fields).prompt.messages)


def user(text: str = "hi") -> Json:
    return {"role": "user", "content": text}


def function_call(call_id: str, name: str = "f", arguments: str = "{}", **more: Any) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def function_output(call_id: str, output: Any = "done") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def chat_call(call_id: str, name: str = "f", arguments: str = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_message(call_id: str, name: str = "f", content: Any = "done") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}
