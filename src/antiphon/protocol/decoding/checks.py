"""Checks of a request that its types cannot express: limits that the operator sets, and mutually exclusive fields.

Only fields that were sent are checked, so that a small request costs almost nothing. Tool declarations are checked for
their number, their names and their schemas.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from msgspec import UNSET

from antiphon.errors import (
    InvalidConversationId,
    InvalidValue,
    MissingParameter,
    MutuallyExclusive,
    UnsupportedParameter,
    invalid_value,
    mutually_exclusive,
)
from antiphon.limits import Limits
from antiphon.protocol.schemas.vetting import SchemaVetter
from antiphon.protocol.types import items as it
from antiphon.protocol.types import tools as wire
from antiphon.protocol.types.filters import MAX_FILTER_DEPTH, MAX_FILTER_NODES, AndFilter, Filter, OrFilter
from antiphon.protocol.types.items import InputItem, Message
from antiphon.protocol.types.parts import InputAudio, InputFile, InputImage, MessagePart, Screenshot, ToolOutputPart
from antiphon.protocol.types.request import CreateResponse, SharedFields
from antiphon.protocol.types.response import JsonSchemaFormat, StructuralTagFormat

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


class ToolChecks:
    """Checks the tools of one list, including those in namespaces."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._vetter = SchemaVetter(limits)
        self._count = 0

    def check(self, tools: list[wire.Tool], param: str) -> None:
        self._add(len(tools), param)
        for index, tool in enumerate(tools):
            self._check(tool, f"{param}[{index}]")

    def _add(self, count: int, param: str) -> None:
        self._count += count
        if self._count > self._limits.tools:
            raise InvalidValue(
                f"'{param}' declares more than {self._limits.tools} tools, counting those in namespaces.", param=param
            )

    def _check(self, tool: wire.Tool, param: str) -> None:
        if isinstance(tool, wire.FunctionTool):
            _check_name(tool.name, param)
            if tool.parameters is not None:
                self._vetter.vet(tool.parameters, f"{param}.parameters")
        elif isinstance(tool, wire.CustomTool):
            _check_name(tool.name, param)
            if isinstance(tool.format, wire.GrammarInput):
                self._check_grammar(tool.format, f"{param}.format.definition")
        elif isinstance(tool, wire.ToolSearchTool) and tool.parameters is not UNSET:
            self._vetter.vet(tool.parameters, f"{param}.parameters")
            _check_object_schema(tool.parameters, f"{param}.parameters")
        elif isinstance(tool, wire.FileSearchTool):
            _check_file_search(tool, param)
        elif isinstance(tool, wire.NamespaceTool):
            _check_name(tool.name, param)
            self._add(len(tool.tools), f"{param}.tools")
            for index, nested in enumerate(tool.tools):
                self._check(nested, f"{param}.tools[{index}]")

    def _check_grammar(self, grammar: wire.GrammarInput, param: str) -> None:
        if grammar.syntax == "regex":
            self._vetter.vet_pattern(grammar.definition, param)
        elif len(grammar.definition) > self._limits.schema_bytes:
            raise InvalidValue(f"'{param}' has more than {self._limits.schema_bytes} characters.", param=param)


def _check_file_search(tool: wire.FileSearchTool, param: str) -> None:
    if not tool.vector_store_ids:
        raise invalid_value(f"{param}.vector_store_ids", "at least one vector store is needed")
    if len(tool.vector_store_ids) > _MAX_SEARCHED_STORES:
        raise invalid_value(f"{param}.vector_store_ids", f"at most {_MAX_SEARCHED_STORES} vector stores are searched")
    check_filter(tool.filters, f"{param}.filters")
    check_ranking(tool.ranking_options, f"{param}.ranking_options")


def check_ranking(options: wire.RankingOptions, param: str) -> None:
    weights = options.hybrid_search
    if weights and not (weights.embedding_weight or weights.text_weight):
        raise invalid_value(f"{param}.hybrid_search", "one of the weights must be greater than 0")


def check_filter(filters: Filter | None, param: str) -> None:
    """Raise if a filter is nested too deeply or has too many parts."""
    level: list[Filter] = [] if filters is None else [filters]
    depth = count = 0
    while level:
        depth, count = depth + 1, count + len(level)
        if depth > MAX_FILTER_DEPTH or count > MAX_FILTER_NODES:
            raise invalid_value(
                param, f"at most {MAX_FILTER_NODES} filters are allowed, nested {MAX_FILTER_DEPTH} levels deep"
            )
        level = [part for one in level if isinstance(one, AndFilter | OrFilter) for part in one.filters]


def _check_object_schema(schema: wire.Json, param: str) -> None:
    """Require the schema of an object: a tool search is always called with one."""
    if schema.get("type", "object") != "object":
        raise InvalidValue(f"'{param}' must be the schema of an object.", param=param)


def _check_name(name: str, param: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidValue(
            f"Invalid value for '{param}.name': {name[:64]!r}. A name has 1 to 128 letters, digits, '_' and '-'.",
            param=f"{param}.name",
        )


Check = Callable[[CreateResponse, Limits], None]

_MAX_SEARCHED_STORES = 100  # by one file_search tool
_MAX_SHOWN_CHARS = 64  # limit for values of the client in error messages
_SCHEMA_KEYS = frozenset({"schema", "json_schema"})  # keys of a structural tag that hold a schema
_CHECKED_ITEMS = frozenset(
    {
        it.AdditionalTools,
        it.ComputerCallOutput,
        it.CustomToolCallOutput,
        it.FunctionCallOutput,
        it.ItemReference,
        it.ToolSearchOutput,
    }
)
_MEDIA_PARTS = frozenset({InputImage, InputFile, Screenshot})  # parts that refer to an image or a file
# Fields that only chat completions and completions support.
_COMPLETIONS_ONLY = frozenset({
    "logit_bias", "min_tokens", "stop_token_ids", "prompt_logprobs", "return_token_ids", "kv_transfer_params",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
})  # fmt: skip


def check_count(items: object, name: str, limit: int) -> None:
    """Raise if there are too many items, before any of them is decoded."""
    if isinstance(items, list | dict) and len(items) > limit:
        raise invalid_value(name, f"it has {len(items)} items; at most {limit} are allowed")


def check_request(request: CreateResponse, sent: Iterable[str], limits: Limits) -> None:
    """Raise if a field named in `sent` has a value that is not allowed."""
    for name in sent:
        if (check := _CHECKS.get(name)) is not None:
            check(request, limits)


def check_completions_only(sent: wire.Json) -> None:
    """Reject fields that only chat completions and completions support: ignored, they would change the result."""
    for name in sorted(_COMPLETIONS_ONLY.intersection(sent)):
        if sent[name]:
            raise UnsupportedParameter(
                f"'{name}' is not supported here: /v1/chat/completions and /v1/completions support it.", param=name
            )


def check_items(items: Sequence[InputItem], name: str, limits: Limits) -> None:
    """Raise if an item in the field `name` is not allowed."""
    for index, item in enumerate(items):
        if type(item) is Message:
            for part_index, part in enumerate(item.content):
                if type(part) in _MEDIA_PARTS:
                    _check_part(part, f"{name}[{index}].content[{part_index}]")
                elif type(part) is InputAudio and len(part.input_audio.data) * 3 // 4 > limits.audio_bytes:
                    param = f"{name}[{index}].content[{part_index}].input_audio.data"
                    raise invalid_value(param, f"an audio part has at most {limits.audio_bytes} bytes")
        elif type(item) in _CHECKED_ITEMS:
            _check_item(item, f"{name}[{index}]", limits)


def check_output(output: str | list[ToolOutputPart], param: str) -> None:
    """Raise if a part of a tool output is not allowed."""
    if type(output) is list:
        for index, part in enumerate(output):
            _check_part(part, f"{param}[{index}]")


def check_metadata(metadata: Mapping[str, str | None], limits: Limits, param: str = "metadata") -> None:
    if len(metadata) > limits.metadata_pairs:
        raise invalid_value(param, f"at most {limits.metadata_pairs} pairs are allowed")
    for key, value in metadata.items():
        if not 0 < len(key) <= limits.metadata_key:
            raise invalid_value(param, f"a key has 1 to {limits.metadata_key} characters")
        if len(value or "") > limits.metadata_value:
            raise invalid_value(f"{param}.{key}", f"a value has at most {limits.metadata_value} characters")
        if "\0" in key or "\0" in (value or ""):
            raise invalid_value(param, "NUL characters are not allowed")


def check_conversation_id(conversation_id: str, param: str) -> None:
    if not conversation_id.startswith("conv_"):
        raise InvalidConversationId(
            f"Invalid '{param}': {conversation_id[:_MAX_SHOWN_CHARS]!r}. Expected an ID that begins with 'conv_'.",
            param=param,
        )


def _check_input(request: CreateResponse, limits: Limits) -> None:
    check_items(request.input, "input", limits)
    _check_trigger(request.input)


def _check_trigger(items: Sequence[InputItem]) -> None:
    """Require a compaction_trigger to be the last item. One before a compaction belongs to an earlier request."""
    if it.CompactionTrigger not in map(type, items):
        return
    for index in range(len(items) - 2, -1, -1):
        if type(items[index]) is it.Compaction:
            return
        if type(items[index]) is it.CompactionTrigger:
            raise InvalidValue("A compaction_trigger must be the last item of the input.", param=f"input[{index}]")


def _check_part(part: MessagePart, param: str) -> None:
    if isinstance(part, (InputImage, Screenshot)) and part.image_url is UNSET and part.file_id is UNSET:
        kind = str(part.__struct_config__.tag)
        raise MissingParameter(f"A part of type {kind} needs an image_url or a file_id.", param=f"{param}.image_url")
    if isinstance(part, (InputImage, Screenshot)) and UNSET not in (part.image_url, part.file_id):
        raise mutually_exclusive(f"{param}.file_id", f"{param}.image_url")
    if type(part) is InputFile:
        sources = [name for name in ("file_data", "file_id", "file_url") if getattr(part, name) is not UNSET]
        if not sources:
            raise MissingParameter("A file needs data, an id or a URL.", param=f"{param}.file_data")
        if len(sources) > 1:
            name = f"{param}.{sources[1]}"
            raise MutuallyExclusive(
                f"'{name}' cannot be combined with '{sources[0]}': a file has one source.", param=name
            )


def _check_item(item: InputItem, param: str, limits: Limits) -> None:
    if type(item) is it.ItemReference and item.id is UNSET:
        raise MissingParameter("An item_reference needs an id.", param=f"{param}.id")
    if type(item) is it.AdditionalTools or type(item) is it.ToolSearchOutput:
        ToolChecks(limits).check(item.tools, f"{param}.tools")
    elif type(item) is it.FunctionCallOutput or type(item) is it.CustomToolCallOutput:
        check_output(item.output, f"{param}.output")
    elif type(item) is it.ComputerCallOutput:
        _check_part(item.output, f"{param}.output")


def _check_text(request: CreateResponse, limits: Limits) -> None:
    text_format = request.text.format
    if isinstance(text_format, JsonSchemaFormat):
        SchemaVetter(limits).vet(text_format.schema, "text.format.schema")
    elif isinstance(text_format, StructuralTagFormat):
        _check_tag([text_format.structures or [], text_format.format or {}], SchemaVetter(limits))


def _check_tag(tag: object, vetter: SchemaVetter) -> None:
    """Check the compiled elements of a structural tag: schemas, and patterns outside of schemas."""
    waiting = [tag]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            for name, value in node.items():
                if name in _SCHEMA_KEYS and isinstance(value, dict):
                    vetter.vet(value, "text.format")
                elif name == "pattern" and isinstance(value, str):
                    vetter.vet_pattern(value, "text.format")
                else:
                    waiting.append(value)


def _check_stop(request: CreateResponse, limits: Limits) -> None:
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > limits.stop_strings:
        raise invalid_value("stop", f"at most {limits.stop_strings} sequences are allowed")
    if not all(0 < len(stop) <= limits.stop_length for stop in stops):
        raise invalid_value("stop", f"a sequence has 1 to {limits.stop_length} characters")


def check_choices(request: SharedFields, limits: Limits) -> None:
    for name, value in (("n", request.n), ("best_of", request.best_of)):
        if value is not None and value > limits.choices:
            raise invalid_value(name, f"at most {limits.choices} are allowed")
    if request.best_of is not None and request.best_of < (request.n or 1):
        raise invalid_value("best_of", "it must not be less than 'n'")


def _check_streamed_choices(request: CreateResponse, limits: Limits) -> None:
    check_choices(request, limits)
    if (request.n or 1) > 1 and request.stream:
        raise invalid_value("n", "only one answer can be streamed; send 'n': 1 or 'stream': false")


def _check_maximum(name: str, limit: str, request: CreateResponse, limits: Limits) -> None:
    if (getattr(request, name) or 0) > (allowed := getattr(limits, limit)):
        raise invalid_value(name, f"at most {allowed} are allowed")


def _reject(name: str, rejected: object, reason: str, request: CreateResponse, limits: Limits) -> None:
    if getattr(request, name) == rejected:
        raise invalid_value(name, reason)


def _check_conversation(request: CreateResponse, limits: Limits) -> None:
    if request.previous_response_id is not None:
        raise mutually_exclusive("conversation", "previous_response_id")
    if request.conversation is not None:
        check_conversation_id(request.conversation.id, "conversation")


def _check_assistant_threshold(request: CreateResponse, limits: Limits) -> None:
    if request.num_assistant_tokens is not None:
        raise mutually_exclusive("assistant_confidence_threshold", "num_assistant_tokens")


_CHECKS: dict[str, Check] = {
    "input": _check_input,
    "tools": lambda request, limits: ToolChecks(limits).check(request.tools, "tools"),
    "text": _check_text,
    "metadata": lambda request, limits: check_metadata(request.metadata, limits),
    "stop": _check_stop,
    "n": _check_streamed_choices,
    "best_of": _check_streamed_choices,
    "max_output_tokens": partial(_check_maximum, "max_output_tokens", "output_tokens"),
    "max_tool_calls": partial(_check_maximum, "max_tool_calls", "tool_calls"),
    "top_k": partial(_reject, "top_k", 0, "it must be -1 (no limit) or at least 1"),
    "prompt_cache_key": partial(_reject, "prompt_cache_key", "", "it must not be empty"),
    "conversation": _check_conversation,
    "assistant_confidence_threshold": _check_assistant_threshold,
    "context_management": partial(_reject, "context_management", [], "at least one entry is needed"),
}
