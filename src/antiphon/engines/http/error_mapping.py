"""What an engine says is wrong, as the client should hear it: the client's fault, the engine's, or the operator's.

Engines say it in several shapes, with an HTTP status or in the middle of a stream. Their words are cut short, and are
passed on only where they are about the client's own request.
"""

from typing import Any

import msgspec

from antiphon.engines.client import Refused
from antiphon.errors import AntiphonError, BadRequest, Busy, ContextTooLong, EngineFailed, ModelNotFound, Unavailable

MOST_WORDS = 500
MOST_SHELLS = 3
_TOO_LONG = (
    "context length", "context_length", "context size", "context window", "exceed_context_size", "max_model_len",
    "maximum model length", "model max length", "maximum input length", "prompt is too long", "too many tokens",
)  # fmt: skip
_TRACE = "\n\n  File "  # SGLang goes on with where in its own files it found that
_CLIENTS = frozenset({400, 413, 415, 422})
_KEY = frozenset({401, 403})


def explained(refused: Refused, who: str, model: str) -> AntiphonError:
    """An answer that was no success."""
    status, words = refused.answered, words_of(refused.body)
    if status in _KEY:
        return EngineFailed(f"{who} does not accept the key that this server has for it.")
    if status == 429:
        return Busy(f"{who} has too much to do.", retry_after=refused.retry_after or 1.0)
    if 300 <= status < 400:
        return EngineFailed(f"{who} answered with a redirect, and none is followed.")
    if _is_too_long(words):
        return ContextTooLong(words, param="input")
    if status in _CLIENTS:
        return BadRequest(f"{who} refuses this request: {words or f'HTTP status {status}'}")
    if status == 404 and "model" in words.lower():
        return ModelNotFound(f"{who} does not have the model '{model}' any more.", param="model")
    if status == 503:
        return Unavailable(f"{who} is not available now.", retry_after=refused.retry_after or 1.0)
    return EngineFailed(f"{who} failed with HTTP status {status}.")


def said_error(who: str, error: Any) -> AntiphonError:
    """An error in the middle of a stream, by its code if it has one."""
    words = _words(error)
    if _is_too_long(words) or _is_too_long(str(_of(error, "type"))):
        return ContextTooLong(words, param="input")
    if _of(error, "code") in (429, "429", "rate_limit_exceeded"):
        return Busy(f"{who} has too much to do.", retry_after=1.0)
    if _of(error, "code") in (503, "503"):
        return Unavailable(f"{who} is not available now.", retry_after=1.0)
    if _of(error, "code") in (400, 422) or _of(error, "type") == "invalid_request_error":
        # vLLM finds out about some of it only after its 200.
        return BadRequest(f"{who} refuses this request: {words or 'it does not say why'}")
    return EngineFailed(f"{who} failed: {words or 'it does not say why'}")


def _is_too_long(words: str) -> bool:
    lower = words.lower()
    return any(mark in lower for mark in _TOO_LONG)


def _words(error: Any) -> str:
    """{"error": {"message": …}}, {"error": "…"}, {"message": …}, {"detail": …} or a text."""
    for _ in range(MOST_SHELLS):
        if isinstance(error, dict):
            error = next((error[name] for name in ("error", "message", "detail") if error.get(name)), "")
    text = error if isinstance(error, str) else ""
    return text.partition(_TRACE)[0].strip()[:MOST_WORDS]


def _of(error: Any, name: str) -> Any:
    return error.get(name) if isinstance(error, dict) else None


def words_of(body: bytes) -> str:
    """What an engine says in the body of a refusal."""
    return _words(_decoded(body))


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # a page of HTML, most likely: nothing a client should see
