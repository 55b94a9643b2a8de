"""Numbers that are out of range, not finite, too long or not numbers, in every numeric field."""

from collections.abc import Iterator
from typing import Any

from drills.bombs.bomb import Bomb, create_bomb, get_bomb, post_bomb
from tests.faults.raw_client import build_body

INTEGERS = ("n", "best_of", "max_tool_calls", "top_logprobs", "max_output_tokens", "seed", "top_k")
FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
UNBOUNDED = {("repetition_penalty", "1e6")}
NOT_NUMBERS = ('"1"', "true", "[1]", "{}")
TOO_LARGE = (str(2**63), str(10**30), "1e400", "-1e400")
BAD_INTEGERS = ("-2", *TOO_LARGE, *NOT_NUMBERS, "1.5")
BAD_FLOATS = ("-3", "1e6", *TOO_LARGE, *NOT_NUMBERS)
BAD_JSON_NUMBERS = ("NaN", "Infinity", "-Infinity", "01", "1.", "+1", "0x1", "1" * 5000)
OUT_OF_RANGE: tuple[tuple[str, int], ...] = (
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
CHAT_FIELDS = ("n", "top_logprobs", "max_tokens", "max_completion_tokens", "seed", "top_k", "temperature", "top_p")
COMPLETION_FIELDS = ("n", "best_of", "logprobs", "max_tokens", "seed", "temperature")
ANTHROPIC_FIELDS = ("max_tokens", "temperature", "top_p", "top_k")
_BAD_NUMBERS = ("-2", str(2**63), "1e400", "-1e400")
_CHAT = '{"model":"fake","messages":[{"role":"user","content":"x"}]'
_MESSAGES = f'{_CHAT},"max_tokens":9'
_COMPLETION = '{"model":"fake","prompt":"x"'
_QUERIES = ("0", "-1", "101", str(2**63), "1e400", "NaN", "0x10", "9" * 5000, "%00")


def add_number(field: str, literal: str) -> bytes:
    """Return a body with this field, whose value is inserted verbatim."""
    return build_body()[:-1] + f', "{field}": {literal}}}'.encode()


def numbers() -> Iterator[Bomb]:
    for field, literal in [(field, literal) for field in INTEGERS for literal in BAD_INTEGERS] + [
        (field, literal) for field in FLOATS for literal in BAD_FLOATS if (field, literal) not in UNBOUNDED
    ]:
        yield post_bomb(f"{field}: {literal}", add_number(field, literal), param=field)
    for field in ("temperature", "max_output_tokens"):
        yield from [
            post_bomb(f"{field}: {literal[:20]}, not JSON", add_number(field, literal)) for literal in BAD_JSON_NUMBERS
        ]
    yield from [
        create_bomb(f"{field}: {value}, out of range", {field: value}, param=field) for field, value in OUT_OF_RANGE
    ]
    yield from _other_apis()
    yield from _query_numbers()


def _other_apis() -> Iterator[Bomb]:
    """Yield the same for other APIs."""
    apis: tuple[tuple[str, str, tuple[str, ...], dict[str, Any]], ...] = (
        ("/v1/chat/completions", _CHAT, CHAT_FIELDS, {}),
        ("/v1/completions", _COMPLETION, COMPLETION_FIELDS, {}),
        ("/v1/messages", _MESSAGES, ANTHROPIC_FIELDS, {"anthropic": True}),
    )
    for path, prefix, fields, options in apis:
        for field in fields:
            for literal in _BAD_NUMBERS:
                sent = f'{prefix},"{field}":{literal}}}'.encode()
                yield post_bomb(f"{path} {field}: {literal}", sent, path, param=field, **options)
    yield post_bomb(
        "dimensions: 2^63",
        b'{"model":"fake","input":"x","dimensions":9223372036854775808}',
        "/v1/embeddings",
        param="dimensions",
    )
    yield post_bomb(
        "tokens: 2^63", b'{"model":"fake","tokens":[9223372036854775808]}', "/detokenize", param="tokens[0]"
    )
    yield post_bomb("tokens: -1", b'{"model":"fake","tokens":[-1]}', "/detokenize", param="tokens[0]")
    yield post_bomb("top_n: 1e400", b'{"model":"fake","query":"x","documents":["x"],"top_n":1e400}', "/v1/rerank")


def _query_numbers() -> Iterator[Bomb]:
    for value in _QUERIES:
        yield get_bomb(f"limit={value[:20]}", f"/v1/responses?limit={value}", param="limit")
        yield get_bomb(f"conversations, limit={value[:20]}", f"/v1/conversations?limit={value}", param="limit")
    for value in ("-1", "1.5", "9" * 30, "nan", "1e400", "0x10", "%00"):
        path = f"/v1/responses/resp_{'0' * 32}?stream=true&starting_after={value}"
        yield get_bomb(f"starting_after={value}", path, param="starting_after")
