"""HTTP framing of an event stream: valid, and with defects."""

import random
from collections.abc import Callable

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"  # the body ends when the connection closes
END = b"0\r\n\r\n"
CANARY = b"@canary@"  # placeholder for the address that must not be contacted

Framing = Callable[[bytes, random.Random], bytes]


def make_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def frame_payload(payload: bytes, chance: random.Random) -> bytes:
    """Frame the payload correctly: in one chunk, one chunk per line, or chunks of any size."""
    match chance.randrange(3):
        case 0:
            body = make_chunk(payload)
        case 1:
            body = b"".join(make_chunk(line) for line in payload.splitlines(keepends=True))
        case _:
            size = chance.randint(1, 500) if len(payload) < 100_000 else 60_000
            body = b"".join(make_chunk(payload[at : at + size]) for at in range(0, len(payload), size))
    return STREAM + body + END


def add_length(payload: bytes, chance: random.Random) -> bytes:
    """Add a Content-Length that is correct, too small, too large, repeated or invalid."""
    size = len(payload)
    wrong = (
        b"%d" % size,
        b"%d" % (size // 2),
        b"%d" % (size + 10),
        b"-1",
        b"9" * 30,
        b"x",
        b"0",
        b"%d, %d" % (size, size),
    )
    length = chance.choice(wrong)
    more = chance.choice((b"", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"))
    return UNTIL_CLOSE[:-2] + b"Content-Length: " + length + b"\r\n" + more + b"\r\n" + payload


def omit_length(payload: bytes, chance: random.Random) -> bytes:
    return UNTIL_CLOSE + payload


def corrupt_chunk_size(payload: bytes, chance: random.Random) -> bytes:
    size = chance.choice(
        (b"%x" % (len(payload) + 7), b"%x" % (len(payload) // 2), b"-5", b"zz", b"f" * 17, b"", b"5;" + b"e" * 999)
    )
    return STREAM + size + b"\r\n" + payload + b"\r\n" + END


def flood_headers(payload: bytes, chance: random.Random) -> bytes:
    line = chance.choice((b"X-Filler: " + b"a" * 100 + b"\r\n", b"X" * 5_000 + b": 1\r\n", b"A:\r\n"))
    flood = line * (chance.choice((1_000, 40_000, 200_000)) // len(line) + 1)
    return STREAM[:-2] + flood + b"\r\n" + make_chunk(payload) + END


def add_informational(payload: bytes, chance: random.Random) -> bytes:
    """Send 1xx responses before the answer, or instead of it."""
    first = chance.choice(
        (b"100 Continue", b"102 Processing", b"103 Early Hints", b"101 Switching Protocols", b"199 ?")
    )
    many = b"HTTP/1.1 " + first + b"\r\nLink: </x>\r\n\r\n"
    return many * chance.choice((1, 2, 2_000)) + chance.choice((frame_payload(payload, chance), b""))


def change_content_type(payload: bytes, chance: random.Random) -> bytes:
    kind = chance.choice(
        (b"text/html", b"application/json", b"", b"text/event-streamer", b"TEXT/EVENT-STREAM; charset=latin-1")
    )
    return frame_payload(payload, chance).replace(b"text/event-stream", kind, 1)


def redirect(payload: bytes, chance: random.Random) -> bytes:
    status = chance.choice((b"301 Moved", b"302 Found", b"303 See Other", b"307 Temporary", b"308 Permanent"))
    location = chance.choice((CANARY + b"/v1/chat/completions", b"/v1/elsewhere", b"//" + CANARY, b"javascript:1", b""))
    head = b"HTTP/1.1 " + status + b"\r\nLocation: " + location + b"\r\n"
    return head + chance.choice((b"Content-Length: 0\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n" + END, b"\r\n"))


def change_status(payload: bytes, chance: random.Random) -> bytes:
    status = chance.choice(
        (
            200,
            201,
            202,
            204,
            206,
            304,
            400,
            401,
            402,
            403,
            404,
            408,
            409,
            413,
            422,
            429,
            500,
            502,
            503,
            504,
            529,
            599,
            999,
        )
    )
    body = chance.choice(
        (
            b'{"error":{"message":"the maximum context length is 8 tokens","code":400}}', b"<html>no</html>", b"",
            b'{"detail":"Not Found"}', b'{"error":"model not found"}', b'{"error":{"message":7,"code":[]}}',
            b"[" * 5_000,
            b'{"message":"' + b"x" * 100_000 + b'"}', b'{"error":{"message":"\xff"}}', b"null", payload,
        )
    )  # fmt: skip
    retry = chance.choice((b"", b"Retry-After: 3\r\n", b"Retry-After: -1\r\n", b"Retry-After: " + b"9" * 400 + b"\r\n"))
    head = b"HTTP/1.1 %d Whatever\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n" % (
        status,
        retry,
        len(body),
    )
    return head + body


def break_http(payload: bytes, chance: random.Random) -> bytes:
    return chance.choice(
        (
            payload, b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/9.9 200 OK\r\n\r\n", b"HTTP/1.1 OK 200\r\n\r\n",
            b"SSH-2.0-OpenSSH_9.6\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
            b"HTTP/1.1 200 OK\nContent-Type: text/event-stream\n\n" + payload,
            b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + payload, chance.randbytes(300),
            b"HTTP/1.1 200 OK\r\n" + b"Content-Type: text/event-stream\r\n" * 40 + b"\r\n" + payload,
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        )
    )  # fmt: skip


def answer_twice(payload: bytes, chance: random.Random) -> bytes:
    """Send a second response, which must not become the answer to the next request."""
    more = chance.choice((frame_payload(payload, chance), b"junk", b"HTTP/1.1 200 OK\r\n", b"\r\n\r\n", STREAM))
    return frame_payload(payload, chance) + more


FRAMINGS: tuple[Framing, ...] = (
    add_length,
    omit_length,
    corrupt_chunk_size,
    flood_headers,
    add_informational,
    change_content_type,
    redirect,
    change_status,
    break_http,
    answer_twice,
)
