"""One client's WebSocket: uvicorn's protocol, with the limits and timeouts that it lacks.

There is no compression: a few bytes could expand to very many. The size of a message is limited by the websockets
library, its number of fragments here. A client that violates the protocol gets the close frame before it is
disconnected. The path of a request is not logged, since clients put keys into it.

The direct extension of HTTP responses (http_server/http_exchange.py) exists here, too, with `write_texts`.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import ProtocolError
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from antiphon.http_server.http_exchange import DIRECT
from antiphon.http_server.settings import FINAL_WRITE_SECONDS, HttpServerSettings, RenderRefusal
from antiphon.http_server.slow_client import SlowClient

_SLICE_BYTES = 4096  # bytes parsed before other tasks get their turn; a frame may have as few as six (RFC 6455 §5.2)
_MAX_FRAGMENTS = 5_000  # of one message (RFC 6455 §5.4)
_LINGER_PAUSE = 0.1  # seconds without data from a rejected client, after which it is disconnected
_MAX_LINGER_PAUSES = 20
_FIN_TEXT = 0x81
_EXTENDED_LENGTH = 126
_LONG_LENGTH = 1 << 16
_MAX_CACHED_SIZE = 1 << 10  # bytes; most messages are shorter
_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)


class HandshakeProtocol(ServerProtocol):
    """The protocol of the websockets library; `render_refusal` renders its rejections."""

    def __init__(self, max_size: int, render_refusal: RenderRefusal) -> None:
        super().__init__(max_size=max_size, logger=_log)
        self._render_refusal = render_refusal

    def reject(self, status: int, text: str) -> Response:
        """Reject the handshake (RFC 6455 §4.4)."""
        response = super().reject(status, text)
        headers, response.body = self._render_refusal(status, text.strip())
        for name, value in (*headers, (b"Content-Length", b"%d" % len(response.body))):
            if name.decode() in response.headers:
                del response.headers[name.decode()]
            response.headers[name.decode()] = value.decode()
        return response


class _FrameHeaders(dict[int, bytes]):
    """Headers of unmasked, unfragmented text frames by payload length, cached for short ones (RFC 6455 §5.2)."""

    def __missing__(self, size: int) -> bytes:
        if size < _EXTENDED_LENGTH:
            header = bytes((_FIN_TEXT, size))
        elif size < _LONG_LENGTH:
            header = b"\x81\x7e" + size.to_bytes(2, "big")
        else:
            header = b"\x81\x7f" + size.to_bytes(8, "big")
        if size < _MAX_CACHED_SIZE:
            self[size] = header
        return header


_frame_headers = _FrameHeaders()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """The asyncio protocol of one WebSocket."""

    # uvicorn's class fills its instance dict; more entries would enlarge it
    __slots__ = ("_pending_pong", "_slow_client", "_stall_seconds", "_still_sending", "_unparsed")

    def __init__(self, settings: HttpServerSettings, state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(settings, state, app_state, asyncio.get_running_loop())
        self.conn.parser.close()  # replaced by ours
        self.logger = _log
        self.conn = HandshakeProtocol(settings.limits.message_bytes, settings.render_refusal)
        self._stall_seconds = settings.limits.stall_seconds
        self._slow_client: SlowClient | None = None
        self._unparsed = bytearray()  # received bytes that still have to be parsed
        self._pending_pong = b""  # held back while the client does not read
        self._still_sending = False  # the client sent data after it got the close frame

    @property
    def write_paused(self) -> bool:
        return self._slow_client is not None

    async def drain(self) -> None:
        await self.writable.wait()

    def write_texts(self, texts: Sequence[bytes]) -> None:
        """Write text messages, given as UTF-8. They are dropped once the connection is closing."""
        if len(texts) == 1:
            self._write(_frame_headers[len(texts[0])] + texts[0])
        else:
            self._write(b"".join([piece for text in texts for piece in (_frame_headers[len(text)], text)]))

    def _write(self, frames: bytes) -> None:
        """Write complete frames, past the protocol."""
        if self.handshake_complete and not (self.close_sent or self.disconnected or self.transport.is_closing()):
            self.transport.write(frames)

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            extensions: Any = self.scope["extensions"]
            extensions[DIRECT] = self

    async def send(self, message: Any) -> None:
        """Send an ASGI message. Raises ClientDisconnected after the close frame."""
        await self.writable.wait()
        if self.handshake_complete and self.close_sent:
            raise ClientDisconnected
        await super().send(message)
        if self.close_sent and self.initial_response is not None:
            # the handshake was rejected; uvicorn would log that as an error of the application
            self.handshake_complete = True

    async def receive(self) -> Any:
        """Receive an ASGI message. Reading stays paused until all received bytes are parsed."""
        message = await super().receive()
        if self._unparsed and not self.transport.is_closing():
            self.transport.pause_reading()
        return message

    def connection_lost(self, error: Exception | None) -> None:
        """Close the parser and drop the scope: they reference the protocol and would wait for the collector."""
        super().connection_lost(error)
        self.conn.parser.close()
        vars(self).pop("scope", None)

    def data_received(self, data: bytes) -> None:
        """Parse in slices: a client that sends many small frames would block the event loop for seconds."""
        if self.conn.parser_exc is not None:
            self._still_sending = True
        elif len(data) <= _SLICE_BYTES and not self._unparsed:
            self._parse_slice(data)
        else:
            if not self._unparsed:
                self.loop.call_soon(self._parse_next_slice)
            self._unparsed += data
            self.transport.pause_reading()

    def start_keepalive(self) -> None:
        """Drop the handshake's request and response: the connection may stay open for an hour."""
        super().start_keepalive()
        del self.request, self.response

    def pause_writing(self) -> None:
        super().pause_writing()
        self._slow_client = SlowClient(self.transport, self.loop.time())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._slow_client = None
        if self._pending_pong:
            self._write(self._pending_pong)
            self._pending_pong = b""

    def check(self, now: float) -> None:
        """Check the stall timeout. A closing connection has unread data, too, or it would be gone."""
        if self._slow_client is None and self.transport.is_closing():
            self._slow_client = SlowClient(self.transport, now)
        if self._slow_client is not None:
            self._slow_client.check(now, self._stall_seconds)

    def shutdown(self) -> None:
        """Let the application, which is notified, send its last events and close; abort clients that do not read."""
        if self.close_sent or not self.handshake_complete:
            super().shutdown()
        else:
            self.stop_keepalive()
            self.close_timer = self.loop.call_later(FINAL_WRITE_SECONDS / 2, self.transport.abort)

    def handle_ping(self) -> None:
        """Answer a ping. A client that does not read gets a pong for the latest one only (RFC 6455 §5.5.3)."""
        output = self.conn.data_to_send()
        if self.write_paused:
            self._pending_pong = [self._pending_pong, *output][-1]
        else:
            self.transport.write(b"".join(output))

    def handle_text(self, event: Frame) -> None:
        super().handle_text(event)
        event.data = b""  # the parser retains its last frame, and the next one may come in an hour

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < _MAX_FRAGMENTS:
            super().handle_cont(event)
            event.data = b""
        elif not self.close_sent:
            self._fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")

    def send_receive_event_to_app(self) -> None:
        """Queue a complete message."""
        message, self.frames = b"".join(self.frames), []  # frees the fragments before the message is read
        if self.close_sent:
            return
        if self.curr_msg_data_type == "text":
            try:
                text = message.decode()
            except UnicodeDecodeError:
                text = None
            if text is None:  # outside of the handler, which would reference the message
                self._fail(CloseCode.INVALID_DATA, "the text is not UTF-8")
                return
            self.queue.put_nowait({"type": "websocket.receive", "text": text})
        else:
            self.queue.put_nowait({"type": "websocket.receive", "bytes": message})
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def handle_parser_exception(self) -> None:
        """Send the close frame, then linger: a disconnect while the client still sends would discard the frame."""
        close = self.conn.close_sent
        assert close is not None
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent, self.read_paused = True, False
        self._unparsed.clear()
        self.frames = []
        self.conn.events_received()  # discards messages that were complete just before the error
        if (error := self.conn.parser_exc) is not None:
            # break the cycle of an error and its traceback: only the garbage collector would free the received data
            error.__traceback__ = error.__cause__ = error.__context__ = None
        self.transport.resume_reading()
        self._linger(_MAX_LINGER_PAUSES)

    def _parse_next_slice(self) -> None:
        data = bytes(self._unparsed[:_SLICE_BYTES])
        del self._unparsed[:_SLICE_BYTES]
        if not data or self.disconnected or self.transport.is_closing():
            self._unparsed.clear()
            return
        self._parse_slice(data)
        if self._unparsed:
            self.loop.call_soon(self._parse_next_slice)
        elif not (self.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def _parse_slice(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._reject_handshake()

    def _linger(self, pauses: int) -> None:
        self._still_sending = False
        self.close_timer = self.loop.call_later(_LINGER_PAUSE, self._end_linger, pauses - 1)

    def _end_linger(self, pauses: int) -> None:
        if self._still_sending and pauses:
            self._linger(pauses)
        else:
            self.transport.close()

    def _fail(self, code: CloseCode, reason: str) -> None:
        self.conn.parser_exc = ProtocolError(reason)
        self.conn.fail(code, reason)
        self.handle_parser_exception()

    def _reject_handshake(self) -> None:
        """Reject a request that was taken for a handshake and is none: wrong method, or too many headers."""
        self.handshake_complete = self.close_sent = True
        self.transport.write(self.conn.reject(400, "This is not a WebSocket handshake request.").serialize())
        self.transport.close()
