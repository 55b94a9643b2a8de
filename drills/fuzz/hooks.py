"""What schemathesis is told of this API: what its errors look like, how its streams are read, and when a request that
the document calls valid may be refused all the same. It is read by schemathesis' own process.

A document says what a request has to look like. What it cannot say is which ids there are, what an engine honours, and
how fields agree with each other: what is refused for that is no fault of it. Nor is it that more is taken than it says,
as long as that is written down here.
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

_STREAM = "text/event-stream"
_MESSAGES = ("/v1/messages", "/v1/messages/count_tokens")
_PASSED_ON = ("/v1/score", "/v1/rerank", "/v2/rerank", "/v1/classify", "/v1/pooling")  # what they need, engines say
_AUDIO = "/v1/audio"  # what is in their forms, too
_NOT_FOUND = 404
BEYOND_SCHEMAS = frozenset(
    {
        "unsupported_parameter", "mutually_exclusive_parameters", "context_length_exceeded", "model_not_found",
        "conversation_not_found", "prompt_not_found", "previous_response_not_found", "invalid_conversation_id",
        "cancellation_not_supported", "invalid_url", "fetch_failed", "invalid_image", "invalid_image_url",
        "invalid_file", "invalid_encrypted_content", "approval_not_found", "tool_call_not_pending",
        "response_not_waiting", "http_error",
    }
)  # fmt: skip
# Sentences of refusals that no schema could foretell, and why: first of what is missing or of another type.
_MISSING = (
    r"parameter: '(model|input|prompt|messages)'",  # each may come from elsewhere, as from what came before
    r"expected an integer.*, got a number",  # 1.0 is an integer to JSON Schema, and none to OpenAI
    r"'messages\[\d+\]",  # what a message has to have, and may, depends on its role
    r"'response_format\.json_schema'",  # and this on its type
    r"'prompt\.variables",  # looked at when they are filled in
)
_UNFIT = (
    r"^There is no (item|response|conversation|call|server_url)\b|offers nothing here",  # ids, labels
    r"^An output needs|needs an image_url",  # types that replies share, where it may be left out
    r"^'\w+' and '\w+' |it needs '|no declared|no tool to call|twice|already",  # fields that do not agree
    r"'messages\[|^messages|does not belong into|does not go on with",
    r"is no token of this model|dimensions\.$|is not supported|are Anthropic's own",  # the model's to say
    r"NUL character|must not be empty|has \d+ to \d+ |at most \d+ |must be -1|at least one",  # bounds of single values
    r"named by their ids|is no JSON|compaction_trigger|A name has",
    r"schema|pattern|regular expression|grammar|Lark",  # languages of their own
)
_EXCUSED = {True: re.compile("|".join(_MISSING)), False: re.compile("|".join(_UNFIT))}
_OF_TYPES = ("Missing required parameter", "Invalid type")
_SHORTER = re.compile(r"(property: type|[ >]type: Incorrect type)$", re.M)  # what something is, is told by where it is

_events: dict[tuple[str, str], dict[str, Any]] = {}  # path and method → the schema of each event
_components: dict[str, Any] = {}


@schemathesis.hook
def before_load_schema(context: HookContext, raw_schema: dict[str, Any]) -> None:
    """The schema of a stream is that of each of its events, in the way of OpenAI's own document: ours to check."""
    _components.update(raw_schema["components"])
    for path, operations in raw_schema["paths"].items():
        for method, operation in operations.items():
            content = operation["responses"]["200"].get("content", {})
            if "schema" in content.get(_STREAM, {}):
                _events[path, method] = content[_STREAM].pop("schema")


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    """What may come from elsewhere, and does not here, so that the rest of a request is looked at."""
    if isinstance(case.body, dict) and case.meta is not None and case.meta.generation.mode.is_positive:
        if case.path.startswith(("/v1/responses", "/v1/chat", "/v1/completions")) and case.path.count("/") < 4:
            case.body["model"] = case.body.get("model") or "fake"
        if case.path.startswith("/v1/responses") and "{" not in case.path:
            case.body["input"] = case.body.get("input") or "hi"


@schemathesis.hook
def filter_failure(context: HookContext, failure: Failure, case: Case[Any], response: Response) -> bool:
    """Refusals are told by `valid_requests_are_taken`, with their reason."""
    if isinstance(failure, AcceptedNegativeData):
        return not (_SHORTER.search(failure.message) or case.path.startswith(_AUDIO))
    return not isinstance(failure, RejectedPositiveData)


@schemathesis.check
def valid_requests_are_taken(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code < 400:
        return
    error = _error(response)
    if response.status_code == _NOT_FOUND or error.get("code") in BEYOND_SCHEMAS or case.path in _PASSED_ON:
        return
    said = str(error.get("message"))
    if not _EXCUSED[said.startswith(_OF_TYPES)].search(said):
        raise AssertionError(f"valid by the document, and refused: {error.get('message')} [{error.get('param')}]")


@schemathesis.check
def refusals_have_the_known_shape(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    if response.status_code < 400 or case.path in _MESSAGES:  # whose shape the document tells
        return
    error = _error(response)
    if error.keys() != {"message", "type", "param", "code"} or not error["message"] or not error["type"]:
        raise AssertionError(f"not an error as clients know it: {response.content[:300]!r}")


@schemathesis.check
def streams_tell_known_events(ctx: CheckContext, response: Response, case: Case[Any]) -> None:
    if not response.headers.get("content-type", [""])[0].startswith(_STREAM):
        return
    validator = _validator(case.operation.path, case.operation.method.lower())
    for event in response.content.decode().split("\n\n"):
        data = event.partition("data: ")[2]
        if data and data != "[DONE]" and (error := next(validator.iter_errors(msgspec.json.decode(data)), None)):
            raise AssertionError(f"an event that the document does not know: {error.message[:300]} in {data[:300]}")


@cache
def _validator(path: str, method: str) -> Any:
    return jsonschema_rs.validator_for({**_events[path, method], "components": _components})


def _error(response: Response) -> dict[str, Any]:
    try:
        told = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        return {}
    error = told.get("error") if isinstance(told, dict) else None
    return error if isinstance(error, dict) else {}
