"""The server in the child process of OpenVINO: its paths and the form of its replies, which are those of llama.cpp."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from msgspec import MsgspecError, Struct
from msgspec.json import Decoder

from antiphon.engines.embedded.wire import LlamaCppError, LlamaCppEvent, encode
from antiphon.http_server.http_exchange import DIRECT, HttpExchange

JSON_HEADERS = [(b"content-type", b"application/json")]
STREAM_HEADERS = [(b"content-type", b"text/event-stream")]


class TokenizeBody(Struct):
    content: str | list[str | int]
    add_special: bool = False


class DetokenizeBody(Struct):
    tokens: list[int]


class RequestError(Exception):
    """A request that the pipeline rejects; the client gets the message."""


class ModelServer(Protocol):
    """The endpoints of a loaded model, by path: each returns a reply to a body, or writes events to the exchange."""

    def encode(self, text: str, add_special: bool = False) -> list[int]: ...

    def detokenize(self, tokens: list[int]) -> str: ...

    async def run(self) -> None:
        """Compute until the process ends."""

    async def answer(self, path: str, body: bytes, exchange: HttpExchange) -> Any:
        """Return the reply to a request of another path; None if it was streamed."""


class ChildApp:
    """The ASGI application."""

    def __init__(self, model: ModelServer) -> None:
        self._model = model
        self._tokenize = Decoder(TokenizeBody)
        self._detokenize = Decoder(DetokenizeBody)

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        status = 200
        try:
            reply = await self._answer(scope["path"], body, scope["extensions"][DIRECT])
        except (RequestError, MsgspecError, RuntimeError, ValueError) as error:
            status, reply = 400, LlamaCppEvent(error=LlamaCppError(message=shorten_error(error)))
        if reply is None:
            return
        await send({"type": "http.response.start", "status": status, "headers": JSON_HEADERS})
        await send({"type": "http.response.body", "body": encode(reply)})

    async def _answer(self, path: str, body: bytes, exchange: HttpExchange) -> Any:
        match path:
            case "/tokenize":
                return LlamaCppEvent(tokens=self._encode(self._tokenize.decode(body)))
            case "/detokenize":
                return LlamaCppEvent(content=self._model.detokenize(self._detokenize.decode(body).tokens))
            case _:
                return await self._model.answer(path, body, exchange)

    def _encode(self, body: TokenizeBody) -> list[int]:
        if isinstance(body.content, str):
            return self._model.encode(body.content, body.add_special)
        tokens: list[int] = []
        for piece in body.content:
            tokens += [piece] if isinstance(piece, int) else self._model.encode(piece)
        return tokens


def shorten_error(error: Exception) -> str:
    """Return the last line of a native error, without the source file that raised it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    message = lines[-1] if lines else type(error).__name__
    source, found, reason = message.partition(": ")
    return (reason if found and "/" in source else message).strip().rstrip(".")[:500]
