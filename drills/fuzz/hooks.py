"""Schemathesis hooks and checks for this API: the format of errors, the validation of streams, and the valid requests
that may be rejected. Loaded by the process of schemathesis.

A schema describes the form of a request. It cannot express which ids exist, what an engine supports, and how fields
depend on each other; rejections for these reasons are permitted. The server may also accept more than the schema, if it
is listed here.
"""

import re
from functools import cache
from typing import Any

import jsonschema_rs
import msgspec
import schemathesis
from schemathesis import Case, CheckContext, HookContext, Response
from schemathesis.core.failures import AcceptedNegativeData, Failure
from schemathesis.openapi.checks import RejectedPositiveData

from drills.harness.openapi_paths import list_finite

_STREAM = "text/event-stream"
_ANTHROPIC_PATHS = ("/v1/messages", "/v1/messages/count_tokens")
_PASSTHROUGH = ("/v1/score", "/v1/rerank", "/v2/rerank", "/v1/classify", "/v1/pooling")  # engines define their fields
_AUDIO = "/v1/audio"  # engines also define the contents of these forms
_NOT_FOUND = 404
CODES_BEYOND_SCHEMAS = frozenset(
    {
        "unsupported_parameter", "mutually_exclusive_parameters", "context_length_exceeded", "model_not_found",
        "conversation_not_found", "prompt_not_found", "previous_response_not_found", "invalid_conversation_id",
        "cancellation_not_supported", "invalid_url", "fetch_failed", "invalid_image", "invalid_image_url",
        "invalid_file", "invalid_encrypted_content", "approval_not_found", "tool_call_not_pending",
        "response_not_waiting", "http_error",
    }
)  # fmt: skip
# Messages of rejections that a schema cannot express, and why. First those about missing fields and wrong types.
_TYPE_PATTERNS = (
    r"parameter: '(model|input|prompt|messages)'",  # may come from another source, such as the previous response
    r"expected an integer.*, got a number",  # 1.0 is an integer in JSON Schema, but not for OpenAI
    r"'messages\[\d+\]",  # fields of a message depend on its role
    r"'response_format\.json_schema'",  # depends on its type
    r"'prompt\.variables",  # checked when they are inserted
    r"filters.*\.key'|'file_ids' or 'files'|for 'expires_after': expected an object",  # names that may be another one
)
_VALUE_PATTERNS = (
    r"^There is no (item|response|conversation|call|function_call|server_url|file|vector store)\b",  # ids
    r"^There is no (skill|container)\b",
    r"^The first key is created|must be in the future|^The name of a key",  # depends on keys, the time and characters
    r"^There is nothing with the id|^The upload |^'part_ids' names|^The parts have",  # ids of lists, parts and states
    r"offers no tool",  # labels
    r"more than half of 'max_chunk_size_tokens'|one of the weights",  # numbers that depend on each other
    r"expected a text, token ids, or a list of either",  # all elements of a list are of one kind
    r"^An output needs|needs an image_url",  # types shared with responses, where the field is optional
    r"^'\w+' and '\w+' |it needs '|not a declared|no tool to call|twice|already",  # fields that contradict each other
    r"'messages\[|^messages|are not allowed in a message|^Prefilled assistant messages",
    r"is no token of this model|dimensions\.$|is not supported|are not supported: declare",  # depends on the model
    r"NUL character|must not be empty|it is empty|(has|have|expected) \d+ to \d+ |[Aa]t most \d+",  # limits of values
    r"limited to \d+ |must be -1|at least one",
    r"'partial_images' needs stream|is made of one image",
    r"keys must be token ids|is not valid JSON|compaction_trigger|A name has",
    r"schema|pattern|regular expression|grammar|Lark|^The skill is not",  # languages and formats with their own syntax
)
_EXCUSED_MESSAGES = {True: re.compile("|".join(_TYPE_PATTERNS)), False: re.compile("|".join(_VALUE_PATTERNS))}
_TYPE_ERRORS = ("Missing required parameter", "Invalid type")
# the type of an object may follow from its position
_OMITTED_TYPE = re.compile(r"(property: type|[ >]type: Incorrect type)$", re.M)
_FILE_TYPE = re.compile(
    r"violates `type` at /properties/(data|file|image|mask)\b"
)  # whatever a form sends as a file is its bytes

_event_schemas: dict[tuple[str, str], dict[str, Any]] = {}  # path and method → schema of each event
_components: dict[str, Any] = {}


@schemathesis.hook
def before_load_schema(context: HookContext, raw_schema: dict[str, Any]) -> None:
    """Remove the schemas of streams, which describe each event as in OpenAI's document; they are checked here
    instead.
    """
    _components.update(raw_schema["components"])
    raw_schema["paths"] = dict(list_finite(raw_schema["paths"]))
    for path, operations in raw_schema["paths"].items():
        for method, operation in operations.items():
            content = operation["responses"]["200"].get("content", {})
            if "schema" in content.get(_STREAM, {}):
                _event_schemas[path, method] = content[_STREAM].pop("schema")


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    """Set fields that may come from another source, so that the other fields of a request are tested."""
    if isinstance(case.body, dict) and case.meta is not None and case.meta.generation.mode.is_positive:
        if case.path.startswith(("/v1/responses", "/v1/chat", "/v1/completions")) and case.path.count("/") < 4:
            case.body["model"] = case.body.get("model") or "fake"
        if case.path.startswith("/v1/responses") and "{" not in case.path:
            case.body["input"] = case.body.get("input") or "hi"


@schemathesis.hook
def filter_failure(context: HookContext, failure: Failure, case: Case[Any], response: Response) -> bool:
    """Ignore rejections of valid requests: `check_valid_accepted` reports them with their reason."""
    if isinstance(failure, AcceptedNegativeData):
        excused = _OMITTED_TYPE.search(failure.message) or _FILE_TYPE.search(failure.message)
        return not (excused or case.path.startswith(_AUDIO))
    return not isinstance(failure, RejectedPositiveData)


@schemathesis.check
def check_valid_accepted(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code < 400:
        return
    error = _error(response)
    if response.status_code == _NOT_FOUND or error.get("code") in CODES_BEYOND_SCHEMAS or case.path in _PASSTHROUGH:
        return
    message = str(error.get("message"))
    if not _EXCUSED_MESSAGES[message.startswith(_TYPE_ERRORS)].search(message):
        raise AssertionError(
            f"valid according to the document, but rejected: {error.get('message')} [{error.get('param')}]"
        )


@schemathesis.check
def check_error_format(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    if response.status_code < 400 or case.path in _ANTHROPIC_PATHS:  # the document describes their errors
        return
    error = _error(response)
    if error.keys() != {"message", "type", "param", "code"} or not error["message"] or not error["type"]:
        raise AssertionError(f"not an error in OpenAI's format: {response.content[:300]!r}")


@schemathesis.check
def check_stream_events(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    if not response.headers.get("content-type", [""])[0].startswith(_STREAM):
        return
    validator = _validator(case.operation.path, case.operation.method.lower())
    for event in response.content.decode().split("\n\n"):
        data = event.partition("data: ")[2]
        if data and data != "[DONE]" and (error := next(validator.iter_errors(msgspec.json.decode(data)), None)):
            raise AssertionError(f"an event that the document does not describe: {error.message[:300]} in {data[:300]}")


@cache
def _validator(path: str, method: str) -> Any:
    return jsonschema_rs.validator_for({**_event_schemas[path, method], "components": _components})


def _error(response: Response) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        return {}
    error = decoded.get("error") if isinstance(decoded, dict) else None
    return error if isinstance(error, dict) else {}
