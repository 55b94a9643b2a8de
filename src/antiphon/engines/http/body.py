"""Builds request bodies from a GenerationRequest, with the field names of one engine.

A field that the engine lacks raises UnsupportedParameter with its name.
"""

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Raw, Struct, to_builtins

from antiphon.core.data_urls import Correction, is_data_url
from antiphon.core.prompt import (
    ChatPrompt,
    Constraint,
    GenerationRequest,
    Grammar,
    Json,
    JsonObject,
    JsonSchema,
    StructuralTag,
    TextPrompt,
    TokenPrompt,
)
from antiphon.engines.http.fields import Column, SentField, UnsupportedField
from antiphon.errors import EngineFailed, UnsupportedParameter
from antiphon.protocol.types.shared_list import derive

# Field of Sampling → request field that it comes from, where the names differ.
_REQUEST_NAMES = {"max_tokens": "max_output_tokens", "logprobs": "top_logprobs"}
# Field of GenerationRequest → row of the table.
_REQUEST_FIELDS = {
    "effort": "reasoning.effort",
    "salt": "cache_salt",
    "priority": "priority",
    "request_id": "request_id",
    "mm_processor_kwargs": "mm_processor_kwargs",
    "kv_transfer_params": "kv_transfer_params",
}
encode_body = msgspec.json.Encoder(enc_hook=lambda make: make()).encode  # a function stands for what it returns
REASONING_KEY = "reasoning_content"  # key of reasoning in the messages of a ChatPrompt
EMPTY_USER_MESSAGE: Json = {"role": "user", "content": ""}  # makes it the model's turn
# Values without effect: accepted even if the engine lacks the field.
_NEUTRAL = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
_PARAM_NAMES = {"structural_tag": "text.format"}  # row of the table → request field for errors, where the names differ


class FieldNames:
    """Names of the request fields for one engine."""

    def __init__(self, engine: str, column: Column) -> None:
        self._engine = engine
        self._column = column

    def name_of(self, field: str) -> str | None:
        cell = self._column[field]
        return cell.name if isinstance(cell, SentField) else None

    def write_all(self, body: Json, request: GenerationRequest) -> None:
        """Write every field of a request but its model and its prompt."""
        for name, value in to_builtins(request.sampling).items():  # without the defaults
            if name == "beam":
                self.write(body, "n", value + 1)
            elif name != "best_of" or value > 1:
                self.write(body, _REQUEST_NAMES.get(name, name), value)
        if request.constraint is not None:
            self.write(body, _constraint_field(request.constraint), request.constraint)
        if request.cache_key is not None:
            key = request.cache_key if request.salt is None else _mix_salt(request.salt, request.cache_key)
            self.write(body, "prompt_cache_key", key)
        for name, field in _REQUEST_FIELDS.items():
            if (value := getattr(request, name)) is not None:
                self.write(body, field, value)

    def write(self, body: Json, field: str, value: Any) -> None:
        cell = self._column[field]
        if isinstance(cell, SentField):
            value = value if cell.change is None else cell.change(value)
            parent, _, name = cell.name.rpartition(".")
            holder = body.setdefault(parent, {}) if parent else body
            holder[name] = {**holder[name], **value} if name in holder and isinstance(value, dict) else value
            body |= cell.also
        elif isinstance(cell, UnsupportedField) and (field not in _NEUTRAL or value != _NEUTRAL[field]):
            raise UnsupportedParameter(
                f"'{field}' is not supported by the {self._engine} engine: {cell.reason}",
                param=_PARAM_NAMES.get(field, field),
            )


class ChatBody:
    """Builds chat completion bodies for one engine.

    Tools, schemas, and contents and calls of messages may be `msgspec.Raw`: JSON that is copied into the body as it is.
    `stream_fields` are added to streamed requests. `continues_assistant`: the engine takes a last assistant message for
    the beginning of its output.
    """

    def __init__(self, field_names: FieldNames, stream_fields: Json, *, continues_assistant: bool = False) -> None:
        self._field_names = field_names
        self._stream_fields = {"stream_options": {"include_usage": True}, **stream_fields}
        self._continues_assistant = continues_assistant
        self._reasoning_name = field_names.name_of("reasoning items")

    def build(self, request: GenerationRequest, *, stream: bool) -> bytes:
        prompt = request.prompt
        if not isinstance(prompt, ChatPrompt):
            raise EngineFailed("This endpoint needs a chat prompt, but got a rendered one.")
        for message in prompt.messages:
            if not isinstance(content := message.get("content"), str):
                _check_images(content)
        body: Json = {"model": request.model, "messages": self.to_messages(prompt), "stream": stream}
        if stream:
            body |= self._stream_fields
        self._field_names.write_all(body, request)
        if prompt.template_kwargs and self._field_names.name_of("chat_template_kwargs"):
            self._field_names.write(body, "chat_template_kwargs", prompt.template_kwargs)
        if prompt.tools:
            self._write_tools(body, prompt)
        return encode_body(body)

    def to_messages(self, prompt: ChatPrompt) -> Sequence[Json]:
        """Return the messages with earlier reasoning under the engine's name for it.

        An empty user message is appended where the engine would otherwise continue the last assistant message.
        """
        messages: Sequence[Json] = [*map(_correct_images, prompt.messages)]
        name = self._reasoning_name
        if name != REASONING_KEY and any(REASONING_KEY in message for message in messages):
            messages = [_rename_reasoning(message, name) for message in messages]
        if self._continues_assistant and messages and messages[-1]["role"] == "assistant":
            messages = [*messages, EMPTY_USER_MESSAGE]
        return messages

    def _write_tools(self, body: Json, prompt: ChatPrompt) -> None:
        names, choice = self._field_names, prompt.tool_choice
        if isinstance(choice, dict) and names.name_of("tool_choice") is None:
            names.write(body, "tools", _select_tool(prompt.tools, choice["function"]["name"]))
        else:
            names.write(body, "tools", derive(prompt.tools, "json", lambda: Raw(encode_body(prompt.tools))))
        if choice != "auto":
            names.write(body, "tool_choice", choice)
        if not prompt.parallel_tool_calls:
            names.write(body, "parallel_tool_calls", False)


def _select_tool(tools: Sequence[Json | Raw] | Raw, name: str) -> list[Json]:
    """Return only the tool that `tool_choice` names, for an engine without that field."""
    return [tool for tool in msgspec.json.decode(encode_body(tools)) if tool["function"]["name"] == name]


class RawBody(Struct, frozen=True, eq=False):
    """Builds bodies for prompts that are already rendered."""

    field_names: FieldNames
    stream_fields: Json
    text_field: str = "prompt"  # the engine's name for a prompt that is text
    ids_field: str = "prompt"  # the same for token ids
    sends_model: bool = True  # the body names the model
    shown_tokens_field: str = ""  # lists control tokens to show; empty: the engine shows all or none

    def build(self, request: GenerationRequest, *, stream: bool) -> bytes:
        body: Json = {"model": request.model, "stream": stream} if self.sends_model else {"stream": stream}
        if stream:
            body |= self.stream_fields
        match request.prompt:
            case TokenPrompt(tokens=tokens):
                body[self.ids_field] = tokens
            case TextPrompt(segments=segments):
                body[self.text_field] = "".join([segment.text for segment in segments])
            case ChatPrompt():
                raise EngineFailed("This endpoint needs a rendered prompt, but got a chat.")
        self.field_names.write_all(body, request)
        if request.visible_tokens and self.shown_tokens_field:
            body[self.shown_tokens_field] = request.visible_tokens
        elif request.visible_tokens:
            self.field_names.write(body, "skip_special_tokens", False)
        return encode_body(body)


def _constraint_field(constraint: Constraint) -> str:
    """Return the row of the field table for a constraint."""
    match constraint:
        case JsonObject() | JsonSchema():
            return "text.format"
        case StructuralTag():
            return "structural_tag"
        case Grammar(syntax=syntax):
            return f"grammar.{syntax}"


def _mix_salt(salt: str, key: str) -> str:
    """Return a cache key that other tenants cannot reproduce."""
    return blake2b(f"{salt}:{key}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _rename_reasoning(message: Json, name: str | None) -> Json:
    if REASONING_KEY not in message:
        return message
    others = {key: value for key, value in message.items() if key != REASONING_KEY}
    return others if name is None else {**others, name: message[REASONING_KEY]}


def _correct_images(message: Json) -> Json:
    """Correct large images while the body is encoded, so that only one at a time is in memory in both forms."""
    parts = message.get("content")
    if not isinstance(parts, list) or not any(map(_has_correction, parts)):
        return message
    return {**message, "content": [_correct_image(**part) if _has_correction(part) else part for part in parts]}


def _has_correction(part: Json | Raw) -> bool:
    return isinstance(part, dict) and "correction" in part


def _correct_image(correction: Correction, image_url: Json, **part: str) -> Json:
    return {**part, "image_url": {**image_url, "url": partial(correction.apply, image_url["url"])}}


def _check_images(content: Sequence[Json | Raw] | Raw | None) -> None:
    """Reject image URLs other than data URLs, because the engine would fetch them."""
    if isinstance(content, Raw):
        content = msgspec.json.decode(content) if memoryview(content)[:1].tobytes() == b"[" else None
    for part in content or ():
        if isinstance(part, Raw):
            part = msgspec.json.decode(part)
        if part.get("type") == "image_url" and not is_data_url(part["image_url"]["url"]):
            raise UnsupportedParameter("Images are taken as data URLs; other URLs are not fetched.", param="input")
