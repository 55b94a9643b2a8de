"""Builds request bodies from a GenerationRequest, with the field names of one engine.

A field that the engine lacks raises UnsupportedParameter with its name.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from antiphon.core.prompt import (
    ChatPrompt,
    Constraint,
    GenerationRequest,
    Grammar,
    Json,
    JsonObject,
    JsonSchema,
    Sampling,
    StructuralTag,
    TextPrompt,
    TokenPrompt,
)
from antiphon.engines.http.fields import Column, SentField, UnsentField, UnsupportedField
from antiphon.errors import EngineFailed, UnsupportedParameter

T = TypeVar("T")

# Field of Sampling → request field that it comes from, where the names differ.
_REQUEST_NAMES = {"max_tokens": "max_output_tokens", "logprobs": "top_logprobs"}
_FIELDS = tuple((field.name, _REQUEST_NAMES.get(field.name, field.name), field.default) for field in fields(Sampling))
_MAX_CACHED_SAMPLINGS = 64
_MAX_TEMPLATE_BYTES = 32 * 1024  # longest template that is cached; tools make it long
_MAX_CACHE_BYTES = (
    256 * 1024
)  # of all cached templates; the objects they were built from take up to twenty times as much
_encode = msgspec.json.Encoder().encode
REASONING_KEY = "reasoning_content"  # key of reasoning in the messages of a ChatPrompt
EMPTY_USER_MESSAGE: Json = {"role": "user", "content": ""}  # makes it the model's turn
# Values without effect: accepted even if the engine lacks the field.
_NEUTRAL = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
_PARAM_NAMES = {"structural_tag": "text.format"}  # row of the table → request field for errors, where the names differ


class FieldNames:
    """Names of the request fields for one engine.

    Similar requests share their Sampling object, so its converted fields are cached and never modified.
    """

    def __init__(self, engine: str, column: Column) -> None:
        self._engine = engine
        self._column = column
        # by the id of the Sampling object, which the value keeps alive
        self._sampling_cache: dict[int, tuple[Sampling, Json]] = {}

    def name_of(self, field: str) -> str | None:
        cell = self._column[field]
        return cell.name if isinstance(cell, SentField) else None

    def write_all(self, body: Json, request: GenerationRequest) -> None:
        cached = self._sampling_cache.get(id(request.sampling))
        body.update(self._sampling_fields(request.sampling) if cached is None else cached[1])
        if request.constraint is not None:
            self.write(body, _constraint_field(request.constraint), request.constraint)
        if request.effort is not None:
            self.write(body, "reasoning.effort", request.effort)
        if request.cache_key is not None:
            key = request.cache_key if request.salt is None else _mix_salt(request.salt, request.cache_key)
            self.write(body, "prompt_cache_key", key)
        if request.salt is not None:
            self.write(body, "cache_salt", request.salt)
        if request.priority is not None:
            self.write(body, "priority", request.priority)
        if request.request_id is not None:
            self.write(body, "request_id", request.request_id)
        if request.mm_processor_kwargs is not None:
            self.write(body, "mm_processor_kwargs", request.mm_processor_kwargs)
        if request.kv_transfer_params is not None:
            self.write(body, "kv_transfer_params", request.kv_transfer_params)

    def _sampling_fields(self, sampling: Sampling) -> Json:
        converted: Json = {}
        for name, field, default in _FIELDS:
            if (value := getattr(sampling, name)) != default and (field != "best_of" or value > 1):
                self.write(converted, field, value)
        _store_in_cache(self._sampling_cache, sampling, converted)
        return converted

    def write(self, body: Json, field: str, value: Any) -> None:
        match self._column[field]:
            case SentField(name=name, change=change, also=also):
                _set_nested(body, name, value if change is None else change(value))
                body.update(also)
            case UnsupportedField(reason=reason) if field not in _NEUTRAL or value != _NEUTRAL[field]:
                raise UnsupportedParameter(
                    f"'{field}' is not supported by the {self._engine} engine: {reason}",
                    param=_PARAM_NAMES.get(field, field),
                )
            case UnsupportedField() | UnsentField():
                pass


class ChatBody:
    """Builds chat completion bodies for one engine.

    `stream_fields` are added to streamed requests. `continues_assistant`: the engine takes a last assistant message for
    the beginning of its output.
    """

    def __init__(self, field_names: FieldNames, stream_fields: Json, *, continues_assistant: bool = False) -> None:
        self._field_names = field_names
        self._stream_fields = stream_fields
        self._continues_assistant = continues_assistant
        self._reasoning_name = field_names.name_of("reasoning items")
        # streamed or not → cache by id of Sampling
        self._templates: dict[bool, dict[int, tuple[Sampling, _BodyTemplate]]] = {False: {}, True: {}}
        self._cache_bytes = 0  # upper bound of the size of all cached templates

    def build(self, request: GenerationRequest, *, stream: bool) -> bytes:
        prompt = request.prompt
        if not isinstance(prompt, ChatPrompt):
            raise EngineFailed("This endpoint needs a chat prompt, but got a rendered one.")
        cached = self._templates[stream].get(id(request.sampling))
        template = (
            cached[1]
            if cached is not None and cached[1].matches(request, prompt)
            else self._build_template(request, prompt, stream)
        )
        has_reasoning = False
        for message in prompt.messages:
            if isinstance(content := message.get("content"), list):
                _check_images(content)
            has_reasoning = has_reasoning or REASONING_KEY in message
        messages = self.to_messages(prompt) if has_reasoning or self._continues_assistant else prompt.messages
        return b"".join((template.before, _encode(messages), template.after))

    def _build_template(self, request: GenerationRequest, prompt: ChatPrompt, stream: bool) -> "_BodyTemplate":
        body: Json = {"stream": stream}
        if stream:
            body |= {"stream_options": {"include_usage": True}, **self._stream_fields}
        self._field_names.write_all(body, request)
        if prompt.tools or prompt.template_kwargs:
            self._write_tools(body, prompt)
        template = _BodyTemplate(
            before=b'{"model":%b,"messages":' % _encode(request.model),
            after=b",%b" % _encode(body)[1:],
            model=request.model,
            tools=prompt.tools,
            tool_choice=prompt.tool_choice,
            parallel=prompt.parallel_tool_calls,
            template_kwargs=prompt.template_kwargs,
            constraint=request.constraint,
            effort=request.effort,
            cache_key=request.cache_key,
            salt=request.salt,
            priority=request.priority,
        )
        size = len(template.before) + len(template.after)
        if size <= _MAX_TEMPLATE_BYTES and template.matches(request, prompt):
            self._cache_bytes += size
            if self._cache_bytes > _MAX_CACHE_BYTES:
                self._templates, self._cache_bytes = {False: {}, True: {}}, size
            _store_in_cache(self._templates[stream], request.sampling, template)
        return template

    def to_messages(self, prompt: ChatPrompt) -> Sequence[Json]:
        """Return the messages with earlier reasoning under the engine's name for it.

        An empty user message is appended where the engine would otherwise continue the last assistant message.
        """
        messages: Sequence[Json] = prompt.messages
        name = self._reasoning_name
        if name != REASONING_KEY and any(REASONING_KEY in message for message in messages):
            messages = [_rename_reasoning(message, name) for message in messages]
        if self._continues_assistant and messages and messages[-1]["role"] == "assistant":
            messages = [*messages, EMPTY_USER_MESSAGE]
        return messages

    def _write_tools(self, body: Json, prompt: ChatPrompt) -> None:
        if prompt.template_kwargs and self._field_names.name_of("chat_template_kwargs"):
            self._field_names.write(body, "chat_template_kwargs", prompt.template_kwargs)
        if not prompt.tools:
            return
        self._field_names.write(
            body, "tools", prompt.tools if self._field_names.name_of("tool_choice") else _chosen_tools(prompt)
        )
        if prompt.tool_choice != "auto":
            self._field_names.write(body, "tool_choice", prompt.tool_choice)
        if not prompt.parallel_tool_calls:
            self._field_names.write(body, "parallel_tool_calls", False)


class _BodyTemplate(Struct, frozen=True, kw_only=True):
    """Encoded body around the messages, and the values beside the Sampling that it was built from."""

    before: bytes
    after: bytes
    model: str
    tools: tuple[Json, ...]
    tool_choice: str | Json
    parallel: bool
    template_kwargs: Json
    constraint: Constraint | None
    effort: str | None
    cache_key: str | None
    salt: str | None
    priority: int | None

    def matches(self, request: GenerationRequest, prompt: ChatPrompt) -> bool:
        """Whether the template fits another request with the same Sampling.

        Similar requests share objects, so identity is compared: equal values may differ in JSON.
        """
        return (
            request.model == self.model
            and prompt.tools is self.tools
            and prompt.tool_choice is self.tool_choice
            and prompt.parallel_tool_calls is self.parallel
            and prompt.template_kwargs is self.template_kwargs
            and request.constraint is self.constraint
            and request.effort == self.effort
            and request.cache_key == self.cache_key
            and request.salt == self.salt
            and request.priority == self.priority
            and request.request_id is None
            and request.mm_processor_kwargs is None
            and request.kv_transfer_params is None
        )


def _chosen_tools(prompt: ChatPrompt) -> Sequence[Json]:
    """Return only the tool that `tool_choice` names, for an engine without that field."""
    choice = prompt.tool_choice
    if not isinstance(choice, dict):
        return prompt.tools
    return [tool for tool in prompt.tools if tool["function"]["name"] == choice["function"]["name"]]


class RawBody:
    """Builds bodies for prompts that are already rendered.

    `text_field` and `ids_field` are the engine's names for the prompt; `sends_model`: the body names the model.
    """

    shown_tokens_field = ""  # name of the field that lists control tokens to show; empty: the engine shows all or none

    def __init__(
        self,
        field_names: FieldNames,
        stream_fields: Json,
        *,
        text_field: str = "prompt",
        ids_field: str = "prompt",
        sends_model: bool = True,
    ) -> None:
        self._field_names = field_names
        self._stream_fields = stream_fields
        self._text_field, self._ids_field, self._sends_model = text_field, ids_field, sends_model

    def build(self, request: GenerationRequest, *, stream: bool) -> bytes:
        body: Json = {"model": request.model, "stream": stream} if self._sends_model else {"stream": stream}
        if stream:
            body |= self._stream_fields
        match request.prompt:
            case TokenPrompt(tokens=tokens):
                body[self._ids_field] = tokens
            case TextPrompt(segments=segments):
                body[self._text_field] = "".join([segment.text for segment in segments])
            case ChatPrompt():
                raise EngineFailed("This endpoint needs a rendered prompt, but got a chat.")
        self._field_names.write_all(body, request)
        if request.visible_tokens and self.shown_tokens_field:
            body[self.shown_tokens_field] = request.visible_tokens
        elif request.visible_tokens:
            self._field_names.write(body, "skip_special_tokens", False)
        return _encode(body)


def _store_in_cache(cache: dict[int, tuple[Sampling, T]], sampling: Sampling, value: T) -> None:
    """Cache a bounded number of values, and none for a Sampling whose size a client controls."""
    if not (sampling.stop or sampling.stop_token_ids or sampling.logit_bias):
        if len(cache) >= _MAX_CACHED_SAMPLINGS:
            cache.clear()
        cache[id(sampling)] = sampling, value


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


def _set_nested(body: Json, name: str, value: Any) -> None:
    """Set a field by its dotted name. Nested objects are copied, because they may be shared."""
    *parents, leaf = name.split(".")
    for key in parents:
        body[key] = body = {**body.get(key, {})}
    body[leaf] = {**body[leaf], **value} if leaf in body and isinstance(value, dict) else value


def _rename_reasoning(message: Json, name: str | None) -> Json:
    if REASONING_KEY not in message:
        return message
    others = {key: value for key, value in message.items() if key != REASONING_KEY}
    return others if name is None else {**others, name: message[REASONING_KEY]}


def _check_images(content: Sequence[Json]) -> None:
    """Reject image URLs other than data URLs, because the engine would fetch them."""
    for part in content:
        if part.get("type") == "image_url" and not part["image_url"]["url"].startswith("data:"):
            raise UnsupportedParameter("Images are taken as data URLs; other URLs are not fetched.", param="input")
