"""Numbers out of range, not finite, too long or not numbers at all, in every field that takes one."""

from collections.abc import Iterator
from typing import Any

from drills.bombs.bomb import Bomb, asked, got, posted
from tests.faults.raw_client import body

INTEGERS = ("n", "best_of", "max_tool_calls", "top_logprobs", "max_output_tokens", "seed", "top_k")
FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
UNBOUNDED = {("repetition_penalty", "1e6")}
NOT_NUMBERS = ('"1"', "true", "[1]", "{}")
TOO_LARGE = (str(2**63), str(10**30), "1e400", "-1e400")
NO_INTEGERS = ("-2", *TOO_LARGE, *NOT_NUMBERS, "1.5")
NO_FLOATS = ("-3", "1e6", *TOO_LARGE, *NOT_NUMBERS)
NO_JSON = ("NaN", "Infinity", "-Infinity", "01", "1.", "+1", "0x1", "1" * 5000)
BEYOND: tuple[tuple[str, int], ...] = (
    ("n", 0),
    ("n", 2**31),
    ("best_of", 0),
    ("best_of", 2**31),
    ("max_output_tokens", 0),
    ("max_output_tokens", 2**31),
    ("max_tool_calls", 2**31),
    ("top_logprobs", 21),
    ("seed", 2**32),
    ("top_k", 0),
)
OF_CHATS = ("n", "top_logprobs", "max_tokens", "max_completion_tokens", "seed", "top_k", "temperature", "top_p")
OF_COMPLETIONS = ("n", "best_of", "logprobs", "max_tokens", "seed", "temperature")
OF_MESSAGES = ("max_tokens", "temperature", "top_p", "top_k")
_HUGE = ("-2", str(2**63), "1e400", "-1e400")
_CHAT = '{"model":"fake","messages":[{"role":"user","content":"x"}]'
_MESSAGES = f'{_CHAT},"max_tokens":9'
_COMPLETION = '{"model":"fake","prompt":"x"'
_QUERIES = ("0", "-1", "101", str(2**63), "1e400", "NaN", "0x10", "9" * 5000, "%00")


def with_number(field: str, literal: str) -> bytes:
    """A body in which it stands as it is written here."""
    return body()[:-1] + f', "{field}": {literal}}}'.encode()


def numbers() -> Iterator[Bomb]:
    for field, literal in [(field, literal) for field in INTEGERS for literal in NO_INTEGERS] + [
        (field, literal) for field in FLOATS for literal in NO_FLOATS if (field, literal) not in UNBOUNDED
    ]:
        yield posted(f"{field}: {literal}", with_number(field, literal), param=field)
    for field in ("temperature", "max_output_tokens"):
        yield from [posted(f"{field}: {literal[:20]}, no JSON", with_number(field, literal)) for literal in NO_JSON]
    yield from [asked(f"{field}: {value}, beyond its bound", {field: value}, param=field) for field, value in BEYOND]
    yield from _elsewhere()
    yield from _in_queries()


def _elsewhere() -> Iterator[Bomb]:
    """The same of other APIs."""
    apis: tuple[tuple[str, str, tuple[str, ...], dict[str, Any]], ...] = (
        ("/v1/chat/completions", _CHAT, OF_CHATS, {}),
        ("/v1/completions", _COMPLETION, OF_COMPLETIONS, {}),
        ("/v1/messages", _MESSAGES, OF_MESSAGES, {"anthropic": True}),
    )
    for path, begun, fields, about in apis:
        for field in fields:
            for literal in _HUGE:
                sent = f'{begun},"{field}":{literal}}}'.encode()
                yield posted(f"{path} {field}: {literal}", sent, path, param=field, **about)
    yield posted("dimensions: 2^63", b'{"model":"fake","input":"x","dimensions":9223372036854775808}', "/v1/embeddings",
                 param="dimensions")  # fmt: skip
    yield posted("tokens: 2^63", b'{"model":"fake","tokens":[9223372036854775808]}', "/detokenize", param="tokens[0]")
    yield posted("tokens: -1", b'{"model":"fake","tokens":[-1]}', "/detokenize", param="tokens[0]")
    yield posted("top_n: 1e400", b'{"model":"fake","query":"x","documents":["x"],"top_n":1e400}', "/v1/rerank")


def _in_queries() -> Iterator[Bomb]:
    for value in _QUERIES:
        yield got(f"limit={value[:20]}", f"/v1/responses?limit={value}", param="limit")
        yield got(f"conversations, limit={value[:20]}", f"/v1/conversations?limit={value}", param="limit")
    for value in ("-1", "1.5", "9" * 30, "nan", "1e400", "0x10", "%00"):
        where = f"/v1/responses/resp_{'0' * 32}?stream=true&starting_after={value}"
        yield got(f"starting_after={value}", where, param="starting_after")
