"""Requests for the tests of render/, decoded from JSON as the server does, and chat messages to compare with."""

from typing import Any

from msgspec.json import encode

from antiphon.core.history.history import make_history
from antiphon.core.prompt import Json
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.types.request import CreateResponse
from antiphon.render.content import AttachmentLookup, AttachmentSource, FileAttachment, ImageAttachment
from antiphon.render.messages import RenderedChat, render_chat

ALL_FEATURES = frozenset({"tools", "reasoning.effort", "input_image", "input_audio", "developer"})


def make_request(**fields: Any) -> CreateResponse:
    return decode_create(encode({"model": "m", "input": "hi", **fields}), Limits()).request


def render_request(features: frozenset[str] = ALL_FEATURES, **fields: Any) -> RenderedChat:
    """Render a request after resolving its attachments."""
    create_request = make_request(**fields)
    attachments = AttachmentLookup()
    history = make_history((), create_request.input)
    made = render_chat(history, create_request, features, attachments)
    if not attachments.missing:
        return made
    attachments.found, attachments.missing = {source: resolve_attachment(source) for source in attachments.missing}, {}
    made = render_chat(history, create_request, features, attachments)
    assert not attachments.missing
    return made


def resolve_attachment(source: AttachmentSource) -> str:
    match source:
        case ImageAttachment(url):
            return f"seen:{url}"
        case FileAttachment(name, data, url):
            return f"[{name}] {data or url}"


def render_messages(*items: Json, features: frozenset[str] = ALL_FEATURES, **fields: Any) -> list[Json]:
    return list(render_request(features, input=list(items), **fields).prompt.messages)


def user_message(text: str = "hi") -> Json:
    return {"role": "user", "content": text}


def function_call(call_id: str, name: str = "f", arguments: str = "{}", **more: Any) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def function_output(call_id: str, output: Any = "done") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def chat_call(call_id: str, name: str = "f", arguments: str = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_message(call_id: str, name: str = "f", content: Any = "done") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}
