"""Exceptions that reach a client, with their HTTP status, error type and error code.

    AntiphonError
    ├── BadRequest                  400 invalid_request_error  (`param` names the field)
    │   ├── InvalidJson                 invalid_json
    │   ├── MissingParameter            missing_required_parameter
    │   ├── InvalidType                 invalid_type
    │   ├── InvalidValue                invalid_value
    │   ├── MutuallyExclusive           mutually_exclusive_parameters
    │   ├── UnsupportedParameter        unsupported_parameter
    │   ├── ContextTooLong              context_length_exceeded
    │   ├── UnknownPrevious             previous_response_not_found
    │   ├── InvalidConversationId       invalid_conversation_id
    │   ├── NotCancellable              cancellation_not_supported
    │   ├── KeyReused                   idempotency_key_reused
    │   ├── UrlRefused                  invalid_url              connecting to the URL is not allowed
    │   ├── FetchFailed                 fetch_failed             the URL is allowed, but the fetch failed
    │   ├── InvalidImage                invalid_image
    │   ├── InvalidImageUrl             invalid_image_url
    │   ├── InvalidFile                 invalid_file
    │   ├── StorageLimitReached         storage_limit_reached    the tenant has stored as much as it may
    │   ├── VectorStoreExpired          vector_store_expired     not used for as many days as its creator allowed
    │   ├── InvalidEncryptedContent     invalid_encrypted_content
    │   ├── UnknownApproval             approval_not_found       never requested, or expired
    │   ├── ApprovalUsed                approval_already_used
    │   ├── ApprovalMismatch            approval_mismatch        differs from the call that was approved
    │   ├── NotPending                  tool_call_not_pending
    │   ├── NotWaiting                  response_not_waiting     not waiting for tool outputs
    │   ├── ToolOutputTimeout           tool_output_timeout      no output arrived in time
    │   ├── UnknownEventType            unknown_event_type       WebSocket messages, as the next four:
    │   ├── InvalidStreamId             invalid_stream_id
    │   ├── TooManyStreams              websocket_stream_limit_reached
    │   ├── ConcurrentRequest           concurrent_request       one response at a time without lanes
    │   └── ConnectionExpired           websocket_connection_limit_reached
    ├── NotAuthenticated            401 authentication_error
    ├── Forbidden                   403 permission_error
    ├── NotFound                    404 not_found_error
    │   ├── ModelNotFound               model_not_found
    │   ├── UnknownConversation         conversation_not_found
    │   ├── UnknownPrompt               prompt_not_found         not in the operator's prompt library
    │   └── UnknownVectorStore          vector_store_not_found
    ├── MethodNotAllowed            405 invalid_request_error  (`allow` lists the methods)
    ├── TooSlow                     408 invalid_request_error  headers or body did not arrive in time
    ├── BodyTooLarge                413 invalid_request_error
    ├── UnsupportedMediaType        415 invalid_request_error
    ├── RangeNotSatisfiable         416 invalid_request_error
    ├── UpgradeRequired             426 invalid_request_error  WebSockets are disabled or not offered here
    ├── McpFailed                   424 external_connector_error  http_error: an MCP server failed
    ├── HeadersTooLarge             431 invalid_request_error
    ├── Busy                        429 rate_limit_error       (`retry_after`)
    ├── Unavailable                 503 service_unavailable    (`retry_after`)
    │   └── VectorStoreTimeout          vector_store_timeout     files of a store are still being indexed
    ├── EngineFailed                500 server_error           an engine died, stalled or sent invalid data
    ├── InvalidCall                 500 server_error           invalid_tool_call: no valid call after all retries
    ├── InvalidOutput               500 server_error           invalid_output: no valid output after all retries
    ├── ServerRestarted             500 server_error           server_restarted: its server died while it ran
    ├── ProcessingFailed            500 server_error           processing_error: a defect, reported on a WebSocket
    └── Internal                    500 server_error           a defect; the message gives no details

Errors are raised, never returned; only transport/http/error_responses.py renders them.
"""

from typing import ClassVar


class AntiphonError(Exception):
    """An error that is reported to the client."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after


class BadRequest(AntiphonError):
    status = 400
    type = "invalid_request_error"


class InvalidJson(BadRequest):
    code = "invalid_json"


class MissingParameter(BadRequest):
    code = "missing_required_parameter"


class InvalidType(BadRequest):
    code = "invalid_type"


class InvalidValue(BadRequest):
    code = "invalid_value"


class MutuallyExclusive(BadRequest):
    code = "mutually_exclusive_parameters"


class UnsupportedParameter(BadRequest):
    """A valid field that the engine in use or this version does not support."""

    code = "unsupported_parameter"


class ContextTooLong(BadRequest):
    code = "context_length_exceeded"


class UnknownPrevious(BadRequest):
    """Not 404: a field of the request is invalid, and clients check for this code."""

    code = "previous_response_not_found"


class InvalidConversationId(BadRequest):
    code = "invalid_conversation_id"


class NotCancellable(BadRequest):
    code = "cancellation_not_supported"


class KeyReused(BadRequest):
    """Not 409, which SDKs retry."""

    code = "idempotency_key_reused"


class UrlRefused(BadRequest):
    """The egress policy does not allow a connection to a URL of the request."""

    code = "invalid_url"


class FetchFailed(BadRequest):
    """The URL is allowed, but the fetch did not return the expected content."""

    code = "fetch_failed"


class InvalidImage(BadRequest):
    code = "invalid_image"


class InvalidImageUrl(BadRequest):
    """An image cannot be loaded from its URL, for any reason. The code is OpenAI's."""

    code = "invalid_image_url"


class InvalidFile(BadRequest):
    code = "invalid_file"


class StorageLimitReached(BadRequest):
    """Not 429, which SDKs retry."""

    code = "storage_limit_reached"


class VectorStoreExpired(BadRequest):
    code = "vector_store_expired"


class InvalidEncryptedContent(BadRequest):
    """Encrypted content that was not encrypted here, or with another key, or for another tenant."""

    code = "invalid_encrypted_content"


class UnknownApproval(BadRequest):
    code = "approval_not_found"


class ApprovalUsed(BadRequest):
    code = "approval_already_used"


class ApprovalMismatch(BadRequest):
    """The arguments, the tool or its server differ from those of the approval request."""

    code = "approval_mismatch"


class NotPending(BadRequest):
    code = "tool_call_not_pending"


class NotWaiting(BadRequest):
    code = "response_not_waiting"


class ToolOutputTimeout(BadRequest):
    """Not 408, which SDKs retry."""

    code = "tool_output_timeout"


class UnknownEventType(BadRequest):
    code = "unknown_event_type"


class InvalidStreamId(BadRequest):
    code = "invalid_stream_id"


class TooManyStreams(BadRequest):
    code = "websocket_stream_limit_reached"


class ConcurrentRequest(BadRequest):
    code = "concurrent_request"


class ConnectionExpired(BadRequest):
    """A WebSocket has reached its maximum lifetime. Clients reconnect when they receive this code."""

    code = "websocket_connection_limit_reached"


class NotAuthenticated(AntiphonError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class Forbidden(AntiphonError):
    status = 403
    type = "permission_error"


class NotFound(AntiphonError):
    status = 404
    type = "not_found_error"


class ModelNotFound(NotFound):
    code = "model_not_found"


class UnknownConversation(NotFound):
    code = "conversation_not_found"


class UnknownPrompt(NotFound):
    code = "prompt_not_found"


class UnknownVectorStore(NotFound):
    code = "vector_store_not_found"

    def __init__(self, store_id: str) -> None:
        super().__init__(f"There is no vector store {store_id[:64]!r}.", param="vector_store_id")


class MethodNotAllowed(AntiphonError):
    status = 405
    type = "invalid_request_error"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class TooSlow(AntiphonError):
    status = 408
    type = "invalid_request_error"


class BodyTooLarge(AntiphonError):
    status = 413
    type = "invalid_request_error"


class UnsupportedMediaType(AntiphonError):
    status = 415
    type = "invalid_request_error"


class RangeNotSatisfiable(AntiphonError):
    status = 416
    type = "invalid_request_error"


class UpgradeRequired(AntiphonError):
    status = 426
    type = "invalid_request_error"


class McpFailed(AntiphonError):
    """An MCP server is unreachable, violates the protocol, or is too slow. Status, type and code are OpenAI's.

    `http` is the HTTP status of the MCP server, if that was the failure; otherwise `rpc` is a JSON-RPC error code.
    """

    status = 424
    type = "external_connector_error"
    code = "http_error"

    def __init__(self, message: str, *, http: int | None = None, rpc: int = -32000) -> None:
        super().__init__(message)
        self.http = http
        self.rpc = rpc


class HeadersTooLarge(AntiphonError):
    status = 431
    type = "invalid_request_error"


class Busy(AntiphonError):
    """A bounded queue is full."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class Unavailable(AntiphonError):
    """No engine is healthy, the store does not answer, or the server is draining."""

    status = 503
    type = "service_unavailable"
    code = "service_unavailable"


class VectorStoreTimeout(Unavailable):
    """The code is OpenAI's."""

    code = "vector_store_timeout"


class EngineFailed(AntiphonError):
    code = "server_error"


class InvalidCall(AntiphonError):
    """The model returned no valid tool call within the allowed number of retries."""

    code = "invalid_tool_call"


class InvalidOutput(AntiphonError):
    """The model returned no output in the required format within the allowed number of retries."""

    code = "invalid_output"


class ServerRestarted(AntiphonError):
    """The server that ran the response died."""

    code = "server_restarted"


class ProcessingFailed(AntiphonError):
    code = "processing_error"


class Internal(AntiphonError):
    code = "server_error"


class StartupError(Exception):
    """A message for the terminal: the command prints it without a traceback and exits with a non-zero code."""


class RequestFailed(Exception):
    """A message for the terminal, likewise: a server is unreachable or rejected the request of a command."""


class ServerUnreachable(RequestFailed):
    """No connection to the server could be opened."""


def missing_parameter(param: str) -> MissingParameter:
    return MissingParameter(f"Missing required parameter: '{param}'.", param=param)


def invalid_value(param: str, reason: str) -> InvalidValue:
    return InvalidValue(f"Invalid value for '{param}': {reason}.", param=param)


def mutually_exclusive(param: str, other: str) -> MutuallyExclusive:
    return MutuallyExclusive(
        f"Mutually exclusive parameters. Ensure you are only providing one of: '{other}' or '{param}'.", param=param
    )
