"""One client's WebSocket on our own server: uvicorn's protocol, with the bounds and clocks that it lacks.

There is no compression: a few bytes could be blown up to many. A message is bounded in bytes by the protocol and in
pieces here. Whoever breaks the protocol gets to read so before it is hung up on. Nothing of a request's path is logged,
since clients put keys into it.
"""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import ProtocolError
from websockets.frames import CloseCode, Frame
from websockets.http11 import Response
from websockets.server import ServerProtocol

from antiphon.errors import BadRequest
from antiphon.transport.http import error_responses
from antiphon.transport.server.http_exchange import Unread
from antiphon.transport.server.settings import LAST_WORDS, ServerSettings

_BITE = 4096  # bytes that are looked at before others have their turn; a frame may have no more than six
_PIECES = 5_000  # of one message
_PAUSE = 0.1  # seconds without a byte from a client that was told why, after which it is hung up on
_PAUSES = 20
_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)


class _Handshake(ServerProtocol):
    def reject(self, status: int, text: str) -> Response:
        """In the shape of every other error."""
        response = super().reject(status, text)
        response.body = error_responses.body(BadRequest(text.strip()))
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(response.body)))):
            del response.headers[name]
            response.headers[name] = value
        return response


class Wire(WebSocketsSansIOProtocol):
    __slots__ = ("_goes_on", "_held", "_patience", "_pong", "_unread")  # uvicorn's class fills its dict to the brim

    def __init__(
        self,
        config: ServerSettings,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn.parser.close()  # ours takes its place
        self.logger = _log
        self.conn = _Handshake(max_size=config.ws_max_size, logger=_log)
        self._patience = config.stall_seconds
        self._unread: Unread | None = None
        self._held = bytearray()  # that is still to be looked at
        self._pong = b""  # that waits for a client that does not read
        self._goes_on = False  # sending, though it was told why it shall not

    @property
    def write_paused(self) -> bool:
        return self._unread is not None

    async def drain(self) -> None:
        await self.writable.wait()

    def write(self, frames: bytes) -> None:
        """Whole frames, beside what the protocol itself sends. Nothing is to be said once it is closing."""
        if self.handshake_complete and not (self.close_sent or self.disconnected or self.transport.is_closing()):
            self.transport.write(frames)

    async def send(self, message: Any) -> None:
        """Whatever is said after the end was for nobody."""
        await self.writable.wait()
        if self.handshake_complete and self.close_sent:
            raise ClientDisconnected
        await super().send(message)
        if self.close_sent and self.initial_response is not None:
            self.handshake_complete = True  # it was refused; uvicorn takes that for a mistake of ours, and logs one

    async def receive(self) -> Any:
        """What comes next is not read before all is looked at that was."""
        message = await super().receive()
        if self._held and not self.transport.is_closing():
            self.transport.pause_reading()
        return message

    def connection_lost(self, error: Exception | None) -> None:
        """The parser knows the protocol that knows it: what they hold would stay until somebody looks for cycles."""
        super().connection_lost(error)
        self.conn.parser.close()

    def data_received(self, data: bytes) -> None:
        """In bites: a client that sends many small frames would keep everybody else waiting for seconds."""
        if self.conn.parser_exc is not None:
            self._goes_on = True
        elif len(data) <= _BITE and not self._held:
            self._bite(data)
        else:
            if not self._held:
                self.loop.call_soon(self._chew)
            self._held += data
            self.transport.pause_reading()

    def start_keepalive(self) -> None:
        """It is open, perhaps for an hour: what led to it is not kept that long."""
        super().start_keepalive()
        del self.request, self.response

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = Unread(self.transport, self.loop.time())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = None
        if self._pong:
            self.write(self._pong)
            self._pong = b""

    def check(self, now: float) -> None:
        """Look at the clocks. One that is to be closed has something unread too, or it would be gone."""
        if self._unread is None and self.transport.is_closing():
            self._unread = Unread(self.transport, now)
        if self._unread is not None:
            self._unread.check(now, self._patience)

    def shutdown(self) -> None:
        """Who talks here knows that the server rests: it has its last words, and closes. Not all clients read them."""
        if self.close_sent or not self.handshake_complete:
            super().shutdown()
        else:
            self.stop_keepalive()
            self.close_timer = self.loop.call_later(LAST_WORDS / 2, self.transport.abort)

    def handle_ping(self) -> None:
        """Of many, a client that does not read gets an answer to the last only."""
        output = self.conn.data_to_send()
        if self.write_paused:
            self._pong = [self._pong, *output][-1]
        else:
            self.transport.write(b"".join(output))

    def handle_text(self, event: Frame) -> None:
        super().handle_text(event)
        event.data = b""  # the parser keeps its last frame, and the next one may come in an hour

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < _PIECES:
            super().handle_cont(event)
            event.data = b""
        elif not self.close_sent:
            self._fail(CloseCode.MESSAGE_TOO_BIG, "too many pieces")

    def send_receive_event_to_app(self) -> None:
        """A text is handed on as the bytes it came as, of which it is known that they are one: its reader wants these,
        and large ones would be copied three times."""
        message, self.frames = b"".join(self.frames), []  # the pieces are gone before it is read
        kind = self.curr_msg_data_type
        if self.close_sent:
            return
        if kind == "text" and not _is_utf8(message):
            self._fail(CloseCode.INVALID_DATA, "the text is not UTF-8")
            return
        self.queue.put_nowait({"type": "websocket.receive", kind: message})  # type: ignore[arg-type]  # ASGI has str
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def handle_parser_exception(self) -> None:
        """The client is told. To hang up on it while it still sends would take the answer from it."""
        close = self.conn.close_sent
        assert close is not None
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent, self.read_paused = True, False
        self._held.clear()
        self.frames = []
        self.conn.events_received()  # what came whole just before: nobody asks for it any more
        _forget_origin(self.conn.parser_exc)
        self.transport.resume_reading()
        self._linger(_PAUSES)

    def _chew(self) -> None:
        bite = bytes(self._held[:_BITE])
        del self._held[:_BITE]
        if not bite or self.disconnected or self.transport.is_closing():
            self._held.clear()
            return
        self._bite(bite)
        if self._held:
            self.loop.call_soon(self._chew)
        elif not (self.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def _bite(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._refuse()

    def _linger(self, pauses: int) -> None:
        self._goes_on = False
        self.close_timer = self.loop.call_later(_PAUSE, self._part, pauses - 1)

    def _part(self, pauses: int) -> None:
        if self._goes_on and pauses:
            self._linger(pauses)
        else:
            self.transport.close()

    def _fail(self, code: CloseCode, why: str) -> None:
        self.conn.parser_exc = ProtocolError(why)
        self.conn.fail(code, why)
        self.handle_parser_exception()

    def _refuse(self) -> None:
        """What passed for a request for a WebSocket is none: of another method, or with more headers than one has."""
        self.handshake_complete = self.close_sent = True
        self.transport.write(self.conn.reject(400, "This is no request for a WebSocket.").serialize())
        self.transport.close()


def _forget_origin(error: BaseException | None) -> None:
    """It knows where it was raised, and that knows it: all that was said would stay until somebody looks for cycles."""
    if error is not None:
        error.__traceback__ = error.__cause__ = error.__context__ = None


def _is_utf8(message: bytes) -> bool:
    if message.isascii():
        return True
    try:
        message.decode()
    except UnicodeDecodeError:
        return False
    return True
