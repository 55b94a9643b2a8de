"""Maps errors of an engine to errors for the client: the fault of the client, the engine or the operator.

Engines report errors in several formats, with an HTTP status or in the middle of a stream. Their text is truncated, and
passed on only if it concerns the client's own request.
"""

from typing import Any

import msgspec

from antiphon.engines.client import EngineHttpError
from antiphon.errors import AntiphonError, BadRequest, Busy, ContextTooLong, EngineFailed, ModelNotFound, Unavailable

MAX_TEXT_LENGTH = 500
MAX_NESTING = 3
_TOO_LONG = (
    "context length", "context_length", "context size", "context window", "exceed_context_size", "max_model_len",
    "maximum model length", "model max length", "maximum input length", "prompt is too long", "too many tokens",
)  # fmt: skip
_TRACEBACK = "\n\n  File "  # SGLang appends a traceback
_CLIENT_STATUSES = frozenset({400, 413, 415, 422})


def map_http_error(error: EngineHttpError, label: str, model: str) -> AntiphonError:
    status, text = error.status_code, error_text(error.body)
    if status == 401:
        return EngineFailed(f"{label} rejected the key that is configured for it.")
    if status == 403:
        return EngineFailed(f"{label} refused access: the key or the address that is configured for it is not allowed.")
    if status == 429:
        return Busy(f"{label} is overloaded.", retry_after=error.retry_after or 1.0)
    if 300 <= status < 400:
        return EngineFailed(f"{label} responded with a redirect; redirects are not followed.")
    if _is_too_long(text):
        return ContextTooLong(text, param="input")
    if status in _CLIENT_STATUSES:
        return BadRequest(f"{label} rejected this request: {text or f'HTTP status {status}'}", param=_find_param(text))
    if status == 404 and "model" in text.lower():
        return ModelNotFound(f"{label} does not have the model '{model}' any more.", param="model")
    if status == 503:
        return Unavailable(f"{label} is not available now.", retry_after=error.retry_after or 1.0)
    return EngineFailed(f"{label} failed with HTTP status {status}.")


def map_stream_error(label: str, error: Any) -> AntiphonError:
    """Map an error object from the middle of a stream, by its code if it has one."""
    text = extract_message(error)
    if _is_too_long(text) or _is_too_long(str(_get_field(error, "type"))):
        return ContextTooLong(text, param="input")
    if _get_field(error, "code") in (429, "429", "rate_limit_exceeded"):
        return Busy(f"{label} is overloaded.", retry_after=1.0)
    if _get_field(error, "code") in (503, "503"):
        return Unavailable(f"{label} is not available now.", retry_after=1.0)
    if _get_field(error, "code") in (400, 422) or _get_field(error, "type") == "invalid_request_error":
        # vLLM validates some fields only after it has sent status 200.
        return BadRequest(f"{label} rejected this request: {text or 'no reason was given'}", param=_find_param(text))
    return EngineFailed(f"{label} failed: {text or 'no reason was given'}")


def _find_param(text: str) -> str | None:
    """Return the field to blame: a grammar of the client is compiled by the engine only. Schemas are checked before, so
    a schema in an error may also be one of a tool.
    """
    lower = text.lower()
    return "text.format" if "grammar" in lower and "schema" not in lower else None


def _is_too_long(text: str) -> bool:
    lower = text.lower()
    return any(phrase in lower for phrase in _TOO_LONG)


def extract_message(error: Any) -> str:
    """Return the text of {"error": {"message": …}}, {"error": "…"}, {"message": …}, {"detail": …} or a plain string."""
    for _ in range(MAX_NESTING):
        if isinstance(error, dict):
            error = next((error[name] for name in ("error", "message", "detail") if error.get(name)), "")
    text = error if isinstance(error, str) else ""
    return text.partition(_TRACEBACK)[0].strip()[:MAX_TEXT_LENGTH]


def _get_field(error: Any, name: str) -> Any:
    return error.get(name) if isinstance(error, dict) else None


def find_error(body: bytes) -> Any:
    """Return the error object in the body of a successful response; None if there is none."""
    return _get_field(_decode_or_none(body), "error")


def error_text(body: bytes) -> str:
    return extract_message(_decode_or_none(body))


def _decode_or_none(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # probably an HTML page, which clients should not see
