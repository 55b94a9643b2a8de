# ruff: noqa: E501 - error messages of servers are not wrapped
"""Mapping of HTTP errors of engines to the errors that clients receive."""

import msgspec
import pytest

from antiphon.engines.client import EngineHttpError
from antiphon.engines.http.error_mapping import MAX_TEXT_LENGTH, map_http_error, map_stream_error
from antiphon.errors import AntiphonError, BadRequest, Busy, ContextTooLong, EngineFailed, ModelNotFound, Unavailable

VLLM = "This model's maximum context length is 4096 tokens. However, your request has 5000 input tokens."
SGLANG = "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
LLAMACPP = "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it"
OVMS = "Mediapipe execution failed. MP status - INVALID_ARGUMENT: Number of prompt tokens: 5000 exceeds model max length: 4096"


@pytest.mark.parametrize(
    ("status", "body", "error", "fragment"),
    [
        (400, {"error": {"message": VLLM, "type": "BadRequestError", "param": "input_tokens", "code": 400}}, ContextTooLong, "4096"),
        (400, {"object": "error", "message": VLLM, "type": "BadRequestError", "code": 400}, ContextTooLong, "4096"),
        (400, {"object": "error", "message": SGLANG, "type": "BadRequestError", "code": 400}, ContextTooLong, "4096"),
        (400, {"error": {"code": 400, "message": LLAMACPP, "type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096}}, ContextTooLong, "4096"),
        (412, {"error": OVMS}, ContextTooLong, "4096"),
        (400, {"error": {"message": "bad schema", "code": 400}}, BadRequest, "rejected this request: bad schema"),
        (422, {"detail": [{"loc": ["body"], "msg": "Field required"}]}, BadRequest, "HTTP status 422"),
        (400, {"object": "error", "message": "1 validation error:\n  x\n\n  File \"/secret/http_server.py\", line 9, in f"}, BadRequest, "1 validation error"),
        (400, {"error": "invalid reasoning value"}, BadRequest, "invalid reasoning value"),
        (413, None, BadRequest, "HTTP status 413"),
        (401, {"error": {"message": "Incorrect API key: sk-secret"}}, EngineFailed, "rejected the key"),
        (403, {"error": "sk-secret is not allowed"}, EngineFailed, "the key or the address"),
        (404, {"error": {"message": "The model `m` does not exist.", "code": 404}}, ModelNotFound, "'m'"),
        (404, {"detail": "Not Found"}, EngineFailed, "HTTP status 404"),
        (429, {"error": {"message": "quota of org-secret"}}, Busy, "is overloaded"),
        (302, None, EngineFailed, "redirect"),
        (500, {"error": {"message": "stack trace of secret"}}, EngineFailed, "HTTP status 500"),
        (502, None, EngineFailed, "HTTP status 502"),
        (503, {"error": {"message": "Loading model", "code": 503}}, Unavailable, "not available now"),
    ],
)  # fmt: skip
def test_an_http_error_is_mapped_to_a_typed_error(
    status: int, body: object, error: type[AntiphonError], fragment: str
) -> None:
    content = b"<html>secret</html>" if body is None else msgspec.json.encode(body)
    mapped = map_http_error(EngineHttpError("The vllm engine", status, content), "The vllm engine", "m")
    assert type(mapped) is error
    assert fragment in mapped.message
    assert "secret" not in mapped.message
    assert type(mapped) is not ContextTooLong or mapped.param == "input"


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("Failed to initialize samplers: failed to parse grammar", "text.format"),
        ("Invalid grammar specification: EBNF parser error at line 1", "text.format"),
        ("Failed to convert the schema of the tool into a grammar", None),
        ("temperature must be non-negative", None),
    ],
)
def test_an_error_about_a_grammar_names_its_parameter(text: str, param: str | None) -> None:
    sent = EngineHttpError("It", 400, msgspec.json.encode({"error": {"message": text, "code": 400}}))
    assert map_http_error(sent, "It", "m").param == param
    assert map_stream_error("It", {"message": text, "code": 400}).param == param


def test_retry_after_is_passed_on() -> None:
    for status in (429, 503):
        assert map_http_error(EngineHttpError("It", status, b"", 17.0), "It", "m").retry_after == 17.0
        assert map_http_error(EngineHttpError("It", status, b""), "It", "m").retry_after == 1.0


def test_a_long_engine_message_is_truncated() -> None:
    mapped = map_http_error(EngineHttpError("It", 400, msgspec.json.encode({"error": "x" * 10_000})), "It", "m")
    assert len(mapped.message) < MAX_TEXT_LENGTH + 100
