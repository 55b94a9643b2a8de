"""Exceptions that reach a client: one tree, each class with its HTTP status, error type and error code.

A class inherits those that it does not set. Errors are raised, never returned; only `error_responses.py` renders them.
"""

from typing import ClassVar


class AntiphonError(Exception):
    """An error that is reported to the client."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init_subclass__(cls, *, status: int | None = None, type: str | None = None, code: str | None = None) -> None:
        cls.status, cls.type, cls.code = status or cls.status, type or cls.type, code or cls.code

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after


class BadRequest(AntiphonError, status=400, type="invalid_request_error"):
    """A field is not valid; `param` names it."""


class InvalidJson(BadRequest, code="invalid_json"):
    """The body is not valid JSON."""


class MissingParameter(BadRequest, code="missing_required_parameter"):
    """A required field is missing."""


class InvalidType(BadRequest, code="invalid_type"):
    """A field has another type than the one that is expected."""


class InvalidValue(BadRequest, code="invalid_value"):
    """A field has a value that is not allowed, or exceeds a limit."""


class MutuallyExclusive(BadRequest, code="mutually_exclusive_parameters"):
    """Two fields exclude each other."""


class UnsupportedParameter(BadRequest, code="unsupported_parameter"):
    """A valid field that the engine in use or this version does not support."""


class ToolCallLimitReached(BadRequest, code="max_tool_calls_reached"):
    """A call was not run, because the response has made as many as its request allows."""


class ContextTooLong(BadRequest, code="context_length_exceeded"):
    """The prompt is longer than the context of the model."""


class UnknownPrevious(BadRequest, code="previous_response_not_found"):
    """The previous response does not exist. Not 404: a field is invalid, and clients check for this code."""


class InvalidConversationId(BadRequest, code="invalid_conversation_id"):
    """`conversation` is not the id of a conversation."""


class NotCancellable(BadRequest, code="cancellation_not_supported"):
    """The response was not created with `background: true`."""


class KeyReused(BadRequest, code="idempotency_key_reused"):
    """The `Idempotency-Key` belongs to a request with another body. Not 409, which SDKs retry."""


class UrlRefused(BadRequest, code="invalid_url"):
    """The egress policy does not allow a connection to a URL of the request."""


class FetchFailed(BadRequest, code="fetch_failed"):
    """The URL is allowed, but the fetch did not return the expected content."""


class InvalidImage(BadRequest, code="invalid_image"):
    """An image cannot be read, or exceeds a limit."""


class InvalidImageUrl(BadRequest, code="invalid_image_url"):
    """An image cannot be loaded from its URL, for any reason. The code is OpenAI's."""


class InvalidFile(BadRequest, code="invalid_file"):
    """A file cannot be read, or exceeds a limit."""


class StorageLimitReached(BadRequest, code="storage_limit_reached"):
    """The tenant has stored as much as it may. Not 429, which SDKs retry."""


class VectorStoreExpired(BadRequest, code="vector_store_expired"):
    """The store was not used for as many days as its creator allowed."""


class DeclaredContainerUnknown(BadRequest, code="container_not_found"):
    """The container of a tool does not exist. Not 404, as for a container in a path: a field is invalid."""


class DeclaredContainerExpired(BadRequest, code="container_expired"):
    """The container of a tool was not used for as long as its creator allowed."""


class InvalidEncryptedContent(BadRequest, code="invalid_encrypted_content"):
    """Encrypted content that was not encrypted here, or with another key, or for another tenant."""


class UnknownApproval(BadRequest, code="approval_not_found"):
    """The approval request does not exist, has expired, or is not part of this conversation."""


class ApprovalUsed(BadRequest, code="approval_already_used"):
    """The approval was used already: the call may have taken effect and is not repeated."""


class ApprovalMismatch(BadRequest, code="approval_mismatch"):
    """The arguments, the tool or its server differ from those of the approval request."""


class NotPending(BadRequest, code="tool_call_not_pending"):
    """The call has an output already, or is not a call of this response."""


class NotWaiting(BadRequest, code="response_not_waiting"):
    """The response does not wait for outputs of tools."""


class ToolOutputTimeout(BadRequest, code="tool_output_timeout"):
    """The output of a tool was not submitted in time. Not 408, which SDKs retry."""


# Errors of messages on a WebSocket.


class UnknownEventType(BadRequest, code="unknown_event_type"):
    """A message on a WebSocket has an unknown type."""


class InvalidStreamId(BadRequest, code="invalid_stream_id"):
    """The `stream_id` of a message on a WebSocket is not valid."""


class TooManyStreams(BadRequest, code="websocket_stream_limit_reached"):
    """A WebSocket has as many lanes as it may have."""


class ConcurrentRequest(BadRequest, code="concurrent_request"):
    """A WebSocket without lanes runs a response already."""


class ConnectionExpired(BadRequest, code="websocket_connection_limit_reached"):
    """A WebSocket has reached its maximum lifetime. Clients reconnect when they receive this code."""


# Errors of clients with another status than 400.


class NotAuthenticated(AntiphonError, status=401, type="authentication_error", code="invalid_api_key"):
    """The API key is missing or wrong."""


class Forbidden(AntiphonError, status=403, type="permission_error"):
    """The key lacks a scope, or this host or origin may not call the server."""


class NotFound(AntiphonError, status=404, type="not_found_error"):
    """The path or the object does not exist."""


class ModelNotFound(NotFound, code="model_not_found"):
    """No engine serves a model of this name."""


class UnknownConversation(NotFound, code="conversation_not_found"):
    """The conversation does not exist."""


class UnknownPrompt(NotFound, code="prompt_not_found"):
    """The prompt is not in the operator's library."""


class UnknownVectorStore(NotFound, code="vector_store_not_found"):
    """The vector store does not exist."""

    def __init__(self, store_id: str) -> None:
        super().__init__(f"There is no vector store {store_id[:64]!r}.", param="vector_store_id")


class UnknownContainer(NotFound, code="container_not_found"):
    """The container does not exist."""


class ContainerExpired(NotFound, code="container_expired"):
    """A container was not used for as long as its creator allowed, or was lost with its sandbox process."""


class MethodNotAllowed(AntiphonError, status=405, type="invalid_request_error"):
    """The path does not support this method; the header `Allow` lists those that it supports."""

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class TooSlow(AntiphonError, status=408, type="invalid_request_error"):
    """Headers or body did not arrive in time."""


class BodyTooLarge(AntiphonError, status=413, type="invalid_request_error"):
    """The body is too large."""


class UnsupportedMediaType(AntiphonError, status=415, type="invalid_request_error"):
    """The body is of another media type than the route takes, or is compressed."""


class RangeNotSatisfiable(AntiphonError, status=416, type="invalid_request_error"):
    """The range lies outside of the content."""


class McpFailed(AntiphonError, status=424, type="external_connector_error", code="http_error"):
    """An MCP server is unreachable, violates the protocol, or is too slow. Status, type and code are OpenAI's.

    `http` is the HTTP status of the MCP server, if that was the failure; otherwise `rpc` is a JSON-RPC error code.
    """

    def __init__(self, message: str, *, http: int | None = None, rpc: int = -32000) -> None:
        super().__init__(message)
        self.http = http
        self.rpc = rpc


class UpgradeRequired(AntiphonError, status=426, type="invalid_request_error"):
    """WebSockets are disabled, or not offered at this path."""


class Busy(AntiphonError, status=429, type="rate_limit_error", code="rate_limit_exceeded"):
    """A quota is used up, or a bounded queue is full."""


class HeadersTooLarge(AntiphonError, status=431, type="invalid_request_error"):
    """The request line and the headers are too large."""


class Unavailable(AntiphonError, status=503, type="service_unavailable", code="service_unavailable"):
    """No engine is healthy, the store does not answer, or the server is draining."""


class VectorStoreTimeout(Unavailable, code="vector_store_timeout"):
    """Files of a store are still being indexed. The code is OpenAI's."""


class SandboxUnavailable(Unavailable, code="sandbox_unavailable"):
    """The sandbox process fails, or a container belongs to the sandbox of another host."""


class SandboxDisabled(SandboxUnavailable, status=400, type="invalid_request_error", code="sandbox_disabled"):
    """Code is not run on this server, or its kernel offers no sandbox. Not 503, which SDKs retry."""


# Failures of the server: status 500.


class EngineFailed(AntiphonError, code="server_error"):
    """An engine died, stalled or sent invalid data."""


class InvalidCall(AntiphonError, code="invalid_tool_call"):
    """The model returned no valid tool call within the allowed number of retries."""


class InvalidOutput(AntiphonError, code="invalid_output"):
    """The model returned no output in the required format within the allowed number of retries."""


class ServerRestarted(AntiphonError, code="server_restarted"):
    """The server that ran the response died."""


class ProcessingFailed(AntiphonError, code="processing_error"):
    """A defect of the server, reported on a WebSocket."""


class Internal(AntiphonError, code="server_error"):
    """A defect of the server; the message gives no details."""


# Not for clients of the API.


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
