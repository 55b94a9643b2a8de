"""WebSockets: frames that break the protocol, messages that are bombs, and handshakes that are none.

Who breaks the protocol is told by a close; a bad message is an error, and the next one is answered.
"""

import struct
from collections.abc import Callable, Iterator
from functools import partial

from websockets.frames import Opcode

from drills.bombs.bodies import NOT_JSON, deep, filled
from drills.bombs.bomb import LOOKED_AT, Bomb, given
from drills.bombs.images import BOMBS, shown
from drills.bombs.numbers import INTEGERS
from drills.bombs.schemas import BAD, as_format, as_tool
from drills.bombs.text import PLACES, SURROGATES, escaped
from tests.clients.websocket.raw_socket import BINARY, CLOSE, CREATE, PING, TEXT, frame, request, text
from tests.support.media_files import as_url

MIB = 1024 * 1024
CONTINUATION = Opcode.CONT
TOO_BIG, BROKEN_RULE, NO_TEXT = 1009, 1002, 1007


def announced(size: int) -> bytes:
    """The beginning of a frame that says it is so large."""
    return b"\x81\xff" + struct.pack("!Q", size) + b"abcd" + b"x" * 1000


FRAMES: dict[str, tuple[bytes, int]] = {
    "1 GB": (announced(1 << 30), TOO_BIG),
    "2^63 - 1 bytes": (announced((1 << 63) - 1), TOO_BIG),
    "2^64 - 1 bytes": (announced((1 << 64) - 1), TOO_BIG),
    "one byte too many": (announced(20 * MIB + 1), TOO_BIG),
    "too many fragments": (frame(TEXT, b"", fin=False) + frame(CONTINUATION, fin=False) * 1_000_000, TOO_BIG),
    "fragments too large": (
        frame(TEXT, b"x" * MIB, fin=False) + frame(CONTINUATION, b"x" * MIB, fin=False) * 24, TOO_BIG,
    ),
    "compressed": (frame(TEXT, b"\x00" * 22, rsv1=True), BROKEN_RULE),
    "not masked": (frame(TEXT, b"{}", mask=False), BROKEN_RULE),
    "a close that is not masked": (frame(CLOSE, b"\x03\xe8", mask=False), BROKEN_RULE),
    "another opcode": (frame(3, b"x"), BROKEN_RULE),
    "a control frame that is too long": (frame(PING, b"x" * 126), BROKEN_RULE),
    "a control frame in pieces": (frame(PING, fin=False), BROKEN_RULE),
    "a continuation of nothing": (frame(CONTINUATION, b"{}"), BROKEN_RULE),
    "a message within a message": (frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"), BROKEN_RULE),
    "no UTF-8": (frame(TEXT, b"\xff\xfe"), NO_TEXT),
    "a surrogate in UTF-8": (frame(TEXT, b'{"input":"\xed\xa0\x80"}'), NO_TEXT),
    "half a character": (frame(TEXT, b"\xc3", fin=False) + frame(CONTINUATION, b""), NO_TEXT),
    "a code that is none": (frame(CLOSE, b"\x00\x00"), BROKEN_RULE),
    "half a code": (frame(CLOSE, b"\x03"), BROKEN_RULE),
    "a reason that is no UTF-8": (frame(CLOSE, b"\x03\xe8\xff"), NO_TEXT),
}  # fmt: skip
NO_HANDSHAKES = {
    "without a key": request("/v1/responses", key=""),
    "with a bad key": request("/v1/responses", key="Sec-WebSocket-Key: x"),
    "by POST": request("/v1/responses", method="POST"),
    "with very many headers": request("/v1/responses", *(f"X-{number}: 1" for number in range(200))),
    "with a very long header": request("/v1/responses", f"Cookie: {'x' * 9_000}"),
    "with a very long path": request(f"/v1/responses?{'x' * 9_000}"),
}
BAD_MESSAGES = (b"{", b"[]", b'{"type":"x"}', b"{}", b'{"input":"\\ud800"}', b"[" * 10_000, b"")


def sockets() -> Iterator[Bomb]:
    for name, (sent, code) in FRAMES.items():
        yield given(f"frames: {name}", sent, way="socket", answers=(code,))
    for name, head in NO_HANDSHAKES.items():
        yield given(f"a handshake {name}", head, way="handshake")
    for path in ("/v1/models", "/nowhere", "/v1/chat/completions"):
        yield given(f"a handshake at {path}", request(path), way="handshake", answers=(400, 404, 405, 426))
    yield given("a handshake of another host", request("/v1/responses", host="Host: evil.com"), way="handshake",
                answers=(400, 403, 421))  # fmt: skip
    yield given("a handshake of another page", request("/v1/responses", "Origin: http://evil.com"), way="handshake",
                answers=(403,))  # fmt: skip
    for sent in BAD_MESSAGES:
        yield given(f"the message {sent[:20]!r}", text(sent), way="socket")
    yield given("a message of bytes", frame(BINARY, b"{}"), way="socket")
    for name, sent in NOT_JSON.items():
        if name not in ("latin-1", "overlong utf-8", "surrogate in utf-8", "utf-16"):  # those break the protocol
            yield given(f"a message that is no JSON: {name}", text(sent), way="socket")
    yield from _creates()


def _creates() -> Iterator[Bomb]:
    """What is refused of a body is refused of a message."""
    for field in INTEGERS:
        before = b'{"type":"response.create","model":"fake","input":"hi","%b":' % field.encode()
        for literal in (b"-2", b"9223372036854775808", b"1e400"):
            yield given(f"a message, {field}: {literal.decode()}", text(before + literal + b"}"), way="socket",
                        param=field)  # fmt: skip
    for name in ("unknown type", "broken pattern", "a million by doubling", "enum beyond the limit", "too deep"):
        yield given(f"a message, a format: {name}", text({**CREATE, **as_format(BAD[name])}), way="socket",
                    param="text.format.schema")  # fmt: skip
        yield given(f"a message, a tool: {name}", text({**CREATE, **as_tool(BAD[name])}), way="socket",
                    param="tools[0].parameters")  # fmt: skip
    for place, template in PLACES.items():
        made = template.replace("{", '{"type":"response.create",', 1)
        yield given(f"a message, half a character as {place}", text(escaped(made, SURROGATES[0])), way="socket")
    begun = '{"type":"response.create","model":"fake","input":'
    for depth in (65, 20_000):
        yield given(f"a message {depth} deep", text(deep(begun, depth)), way="socket")
    item = '{"role":"user","content":"x"},'
    for size in (MIB, 10 * MIB):
        make = partial(_filled, begun + "[", item, size)
        yield Bomb(name=f"a message of small items, {size // 1000} kB", make=make, way="socket")
    for name in ("30,000 x 30,000", "a GIF of 100,000 frames", "half a JPEG"):
        make = partial(_showing, BOMBS[name])
        yield Bomb(name=f"a message with a picture: {name}", make=make, way="socket", most=LOOKED_AT)


def _showing(picture: Callable[[], bytes]) -> bytes:
    return text({**CREATE, **shown(as_url(picture()))})


def _filled(begun: str, item: str, size: int) -> bytes:
    return text(filled(begun, item, "7]}", size))
