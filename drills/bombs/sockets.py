"""WebSockets: frames that violate the protocol, messages that are bombs, and invalid handshakes.

A protocol violation closes the connection (RFC 6455 §7.1.7); an invalid message is answered with an error, and the
connection stays open.
"""

import struct
from collections.abc import Callable, Iterator
from functools import partial

from websockets.frames import Opcode

from drills.bombs.bodies import NOT_JSON, fill_body, nest_body
from drills.bombs.bomb import MEDIA_SECONDS, Bomb, raw_bomb
from drills.bombs.images import IMAGES, image_fields
from drills.bombs.numbers import INTEGERS
from drills.bombs.schemas import BAD_SCHEMAS, as_format, as_tool
from drills.bombs.text import SURROGATES, TEMPLATES, fill_template
from tests.clients.websocket.raw_socket import (
    BINARY,
    CLOSE,
    CREATE,
    PING,
    TEXT,
    build_upgrade_request,
    encode_frame,
    encode_text_frame,
)
from tests.support.media_files import encode_data_url

MIB = 1024 * 1024
CONTINUATION = Opcode.CONT
TOO_BIG, PROTOCOL_ERROR, INVALID_TEXT = 1009, 1002, 1007


def start_frame(size: int) -> bytes:
    """Return the beginning of a frame that declares this size."""
    return b"\x81\xff" + struct.pack("!Q", size) + b"abcd" + b"x" * 1000


FRAMES: dict[str, tuple[bytes, int]] = {
    "1 GB": (start_frame(1 << 30), TOO_BIG),
    "2^63 - 1 bytes": (start_frame((1 << 63) - 1), TOO_BIG),
    "2^64 - 1 bytes": (start_frame((1 << 64) - 1), TOO_BIG),
    "one byte too many": (start_frame(20 * MIB + 1), TOO_BIG),
    "too many fragments": (
        encode_frame(TEXT, b"", fin=False) + encode_frame(CONTINUATION, fin=False) * 1_000_000,
        TOO_BIG,
    ),
    "fragments too large": (
        encode_frame(TEXT, b"x" * MIB, fin=False) + encode_frame(CONTINUATION, b"x" * MIB, fin=False) * 24, TOO_BIG,
    ),
    "compressed": (encode_frame(TEXT, b"\x00" * 22, rsv1=True), PROTOCOL_ERROR),
    "not masked": (encode_frame(TEXT, b"{}", mask=False), PROTOCOL_ERROR),
    "a close that is not masked": (encode_frame(CLOSE, b"\x03\xe8", mask=False), PROTOCOL_ERROR),
    "another opcode": (encode_frame(3, b"x"), PROTOCOL_ERROR),
    "a control frame that is too long": (encode_frame(PING, b"x" * 126), PROTOCOL_ERROR),
    "a control frame in pieces": (encode_frame(PING, fin=False), PROTOCOL_ERROR),
    "a continuation of nothing": (encode_frame(CONTINUATION, b"{}"), PROTOCOL_ERROR),
    "a message within a message": (encode_frame(TEXT, b"{", fin=False) + encode_frame(TEXT, b"}"), PROTOCOL_ERROR),
    "no UTF-8": (encode_frame(TEXT, b"\xff\xfe"), INVALID_TEXT),
    "a surrogate in UTF-8": (encode_frame(TEXT, b'{"input":"\xed\xa0\x80"}'), INVALID_TEXT),
    "half a character": (encode_frame(TEXT, b"\xc3", fin=False) + encode_frame(CONTINUATION, b""), INVALID_TEXT),
    "a code that is none": (encode_frame(CLOSE, b"\x00\x00"), PROTOCOL_ERROR),
    "half a code": (encode_frame(CLOSE, b"\x03"), PROTOCOL_ERROR),
    "a reason that is no UTF-8": (encode_frame(CLOSE, b"\x03\xe8\xff"), INVALID_TEXT),
}  # fmt: skip
BAD_HANDSHAKES = {
    "without a key": build_upgrade_request("/v1/responses", key=""),
    "with a bad key": build_upgrade_request("/v1/responses", key="Sec-WebSocket-Key: x"),
    "by POST": build_upgrade_request("/v1/responses", method="POST"),
    "with very many headers": build_upgrade_request("/v1/responses", *(f"X-{number}: 1" for number in range(200))),
    "with a very long header": build_upgrade_request("/v1/responses", f"Cookie: {'x' * 9_000}"),
    "with a very long path": build_upgrade_request(f"/v1/responses?{'x' * 9_000}"),
}
BAD_MESSAGES = (b"{", b"[]", b'{"type":"x"}', b"{}", b'{"input":"\\ud800"}', b"[" * 10_000, b"")


def sockets() -> Iterator[Bomb]:
    for name, (sent, code) in FRAMES.items():
        yield raw_bomb(f"frames: {name}", sent, channel="socket", answers=(code,))
    for name, head in BAD_HANDSHAKES.items():
        yield raw_bomb(f"a handshake {name}", head, channel="handshake")
    for path in ("/v1/models", "/nowhere", "/v1/chat/completions"):
        yield raw_bomb(
            f"a handshake at {path}", build_upgrade_request(path), channel="handshake", answers=(400, 404, 405, 426)
        )
    yield raw_bomb(
        "a handshake of another host",
        build_upgrade_request("/v1/responses", host="Host: evil.com"),
        channel="handshake",
        answers=(400, 403, 421),
    )
    yield raw_bomb(
        "a handshake of another page",
        build_upgrade_request("/v1/responses", "Origin: http://evil.com"),
        channel="handshake",
        answers=(403,),
    )
    for sent in BAD_MESSAGES:
        yield raw_bomb(f"the message {sent[:20]!r}", encode_text_frame(sent), channel="socket")
    yield raw_bomb("a message of bytes", encode_frame(BINARY, b"{}"), channel="socket")
    for name, sent in NOT_JSON.items():
        if name not in ("latin-1", "overlong utf-8", "surrogate in utf-8", "utf-16"):  # these violate the protocol
            yield raw_bomb(f"a message that is no JSON: {name}", encode_text_frame(sent), channel="socket")
    yield from _create_messages()


def _create_messages() -> Iterator[Bomb]:
    """Yield messages with content that is also rejected in a body."""
    for field in INTEGERS:
        before = b'{"type":"response.create","model":"fake","input":"hi","%b":' % field.encode()
        for literal in (b"-2", b"9223372036854775808", b"1e400"):
            yield raw_bomb(
                f"a message, {field}: {literal.decode()}",
                encode_text_frame(before + literal + b"}"),
                channel="socket",
                param=field,
            )
    for name in ("unknown type", "broken pattern", "a million by doubling", "enum beyond the limit", "too deep"):
        yield raw_bomb(
            f"a message, a format: {name}",
            encode_text_frame({**CREATE, **as_format(BAD_SCHEMAS[name])}),
            channel="socket",
            param="text.format.schema",
        )
        yield raw_bomb(
            f"a message, a tool: {name}",
            encode_text_frame({**CREATE, **as_tool(BAD_SCHEMAS[name])}),
            channel="socket",
            param="tools[0].parameters",
        )
    for field_name, template in TEMPLATES.items():
        message = template.replace("{", '{"type":"response.create",', 1)
        yield raw_bomb(
            f"a message, a lone surrogate as {field_name}",
            encode_text_frame(fill_template(message, SURROGATES[0])),
            channel="socket",
        )
    prefix = '{"type":"response.create","model":"fake","input":'
    for depth in (65, 20_000):
        yield raw_bomb(f"a message {depth} deep", encode_text_frame(nest_body(prefix, depth)), channel="socket")
    item = '{"role":"user","content":"x"},'
    for size in (MIB, 10 * MIB):
        make = partial(_filled_message, prefix + "[", item, size)
        yield Bomb(name=f"a message of small items, {size // 1000} kB", make=make, channel="socket")
    for name in ("30,000 x 30,000", "a GIF of 100,000 frames", "half a JPEG"):
        make = partial(_image_message, IMAGES[name])
        yield Bomb(name=f"a message with an image: {name}", make=make, channel="socket", max_seconds=MEDIA_SECONDS)


def _image_message(make: Callable[[], bytes]) -> bytes:
    return encode_text_frame({**CREATE, **image_fields(encode_data_url(make()))})


def _filled_message(prefix: str, item: str, size: int) -> bytes:
    return encode_text_frame(fill_body(prefix, item, "7]}", size))
