"""Client of a running server, used by `chat`, `models`, `connect` and `bench`, and the parts of replies that they use.

The API key is sent to its server only, and is redacted from all messages.
"""

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from msgspec import Raw, Struct
from msgspec.json import Decoder

from antiphon.config import Config
from antiphon.engines.client import EngineClient, EngineHttpError, EngineTimeouts
from antiphon.engines.connection import TcpAddress, create_tls_context
from antiphon.engines.http.error_mapping import error_text, extract_message
from antiphon.engines.http.readers.wire import ModelCard
from antiphon.errors import AntiphonError, RequestFailed, ServerUnreachable, StartupError, Unavailable

T = TypeVar("T")
CONNECT_SECONDS = 10.0
READ_SECONDS = 900.0  # longer than the server's own timeout for a silent engine
MAX_MESSAGE_LENGTH = 300
# Model output must not control the terminal: control characters other than tab and newline are dropped.
CONTROL_CHARACTERS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_VERSION_SUFFIX = re.compile(r"/v\d+$")


class TokenUsage(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None


class IncompleteReason(Struct):
    reason: str = ""


class ResponseReply(Struct):
    """The fields of a response that `chat` and `bench` use; items are sent back to the server unchanged."""

    output: list[Raw] = []
    error: Any = None
    incomplete_details: IncompleteReason | None = None
    usage: TokenUsage | None = None


class StreamedEvent(Struct, gc=False):
    """The fields of an event that `chat` and `bench` use."""

    type: str = ""
    delta: Any = ""
    response: ResponseReply | None = None
    error: Any = None
    message: str | None = None

    @property
    def error_message(self) -> str:
        """The message of an event that reports a failure, or an empty text."""
        return extract_message(self.response.error if self.response else self.error or self.message)


class ModelListReply(Struct):
    data: list[ModelCard]


MODEL_LIST, EVENT = Decoder(ModelListReply), Decoder(StreamedEvent)


class ServerClient:
    """A client of one server. `http` makes requests below the root of the API, and raises AntiphonError."""

    key_flag = "--api-key"

    def __init__(self, url: str, key: str | None, timeout: float = READ_SECONDS, max_idle: int = 0) -> None:
        parts = parse_server_url(url)
        is_https = parts.scheme == "https"
        port = parts.port or (443 if is_https else 80)
        address = TcpAddress(parts.hostname or "", port, create_tls_context() if is_https else None)
        timeouts = EngineTimeouts(connect=CONNECT_SECONDS, first_byte=timeout, idle=timeout)
        root = parts.path if _VERSION_SUFFIX.search(parts.path) else f"{parts.path}/v1"
        self.url = url.rstrip("/")
        self.http = EngineClient(address, self.url, timeouts, max_idle, parts.netloc, key, root)

    async def list_models(self) -> list[str]:
        return [model.id for model in (await self.http.get("/models", MODEL_LIST)).data]

    def run(self, request: Coroutine[Any, Any, T]) -> T:
        """Make a request in an event loop of its own. Raises RequestFailed."""
        try:
            return asyncio.run(request)
        except EngineHttpError as error:
            self.check_key_error(error)
            raise RequestFailed(self.describe_error(error))
        except Unavailable as error:
            reason = self.describe_error(error).removeprefix(self.url).strip(" .")
            raise ServerUnreachable(f"No server answers at {self.url} ({reason}). Start one: antiphon serve")
        except AntiphonError as error:
            raise RequestFailed(self.describe_error(error))

    def describe_error(self, error: AntiphonError) -> str:
        """Return one sentence for the terminal, with the server's own message."""
        message = error.message
        if isinstance(error, EngineHttpError):
            detail = error_text(error.body)
            message = f"{self.url} returned HTTP {error.status_code}" + (f": {detail}" if detail else "")
        message = self.http.redact_key(message.encode("utf-8", "replace")).decode()
        return f"{message[:MAX_MESSAGE_LENGTH].translate(CONTROL_CHARACTERS).strip().rstrip('.')}."

    def check_key_error(self, error: EngineHttpError) -> None:
        """Raise RequestFailed if the server requires another key."""
        if error.status_code in (401, 403):
            raise RequestFailed(f"{self.describe_error(error)} Set its key with {self.key_flag} or ANTIPHON_API_KEY.")


def make_client(config: Config) -> ServerClient:
    return ServerClient(config.server_url, config.server.api_key[0] if config.server.api_key else None)


def parse_server_url(url: str) -> SplitResult:
    """Parse the URL of a server; its path does not end with a slash. Raises StartupError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.username is not None or parts.password is not None:
        raise StartupError("The URL must not contain a key: use an option, or ANTIPHON_API_KEY.")
    is_plain = not (parts.query or parts.fragment) and all("!" <= character <= "~" for character in url)
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not is_plain:
        raise StartupError(f"{url!r} is not a server's address; expected something like http://127.0.0.1:8000.")
    return parts._replace(path=parts.path.rstrip("/"))
