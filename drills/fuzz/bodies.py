"""Mutated requests: recorded client requests, and the examples of the OpenAPI document, each with one or a few changes.

Each mutation is generated from its number, so it can be repeated.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from drills.engines.event_mutations import insert_invalid_literal, mistype_value, nest_value
from drills.harness.openapi_paths import list_finite
from tests.engines.http.stubs.mutations import mutate

RECORDINGS = Path(__file__).parents[2] / "tests" / "recordings"
CREATE = "/v1/responses"
Json = dict[str, Any]

_ID = re.compile(r"\b(resp|msg|rs|fc|ctc|call|conv)_[0-9a-f]{20,}\b")
_CLOSED_URL = "http://127.0.0.1:1/mcp"  # replaces the recorded MCP server; no process listens there
_MAX_TOKENS = 16  # of an answer, because only requests are tested
_PREFIX = b"data: "
_SOCKET_SHARE, _PATH_SHARE = 0.2, 0.05  # shares of requests over WebSockets, and with a mutated path
_VALUES: Sequence[Any] = (
    "", "\0", "\ud800", "\u202e", "x" * 70_000, "é" * 600, "../../etc/passwd", "resp_" + "0" * 32, "{}", "$ref", "[",
    0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**400, 0.1, -0.0, 1e308, 5e-324, float("nan"), float("inf"),
    True, False, None, [], {}, [[]], [{}], [None], {"": None}, {"type": "x"}, {"$ref": "#"}, "auto", "required",
    "function", "user", "system", "assistant", "json_schema", "data:image/png;base64,AAAA", "http://127.0.0.1:1/",
    "input_file",
)  # fmt: skip
_KEYS = (
    "",
    "\0",
    "type",
    "id",
    "role",
    "content",
    "input",
    "tools",
    "model",
    "stream",
    "background",
    "__proto__",
    "é",
)


class FuzzRequest(Struct, frozen=True):
    """One request, or one message of a WebSocket."""

    number: int
    method: str
    path: str
    body: bytes
    by_socket: bool = False


class Seed(Struct, frozen=True):
    method: str
    path: str
    body: Any = None
    by_socket: bool = False


ObjectIds = dict[str, str]  # prefix of an id → an id that exists on this server
BodyMutation = Callable[[Any, random.Random], Any]


def load_recordings() -> Iterator[Seed]:
    for path in sorted(RECORDINGS.glob("*.json")):
        for request in json.loads(path.read_bytes()):
            if "frames" in request:
                yield from (Seed("GET", CREATE, one["client"], True) for one in request["frames"] if "client" in one)
                continue
            query = urlencode([*map(tuple, request["query"])])
            yield Seed(request["method"], f"/v1/{request['tail']}{'?' if query else ''}{query}", request.get("body"))


def load_examples(document: Json) -> Iterator[Seed]:
    """Yield the examples of an OpenAPI document; ids in paths have the recorded form, which is replaced by existing
    ids.
    """
    for path, operations in list_finite(document["paths"]):
        filled_path = re.sub(r"{(\w+)_id}", lambda found: f"{_KINDS.get(found[1], 'call')}_{'0' * 24}", path)
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            yield Seed(method.upper(), filled_path, content.get("example"))


_KINDS = {"response": "resp", "conversation": "conv", "item": "msg"}


class RequestMutator:
    def __init__(self, seeds: Sequence[Seed], salt: int = 0) -> None:
        self._seeds = [_limit_output(seed) for seed in seeds]
        self._salt = salt

    def unmodified(self, ids: ObjectIds) -> Iterator[FuzzRequest]:
        """Yield each request once, unmodified."""
        for number, seed in enumerate(self._seeds):
            path, body = _insert_ids(seed, ids)
            yield FuzzRequest(
                number, seed.method, path, b"" if body is None else json.dumps(body).encode(), seed.by_socket
            )

    def mutate(self, number: int, ids: ObjectIds) -> FuzzRequest:
        """Return the mutation of this number. `ids`: objects that requests may name."""
        chance = random.Random(f"{self._salt}:{number}")
        seed = chance.choice(self._seeds)
        path, body = _insert_ids(seed, ids)
        by_socket = seed.by_socket or (seed.path == CREATE and body is not None and chance.random() < _SOCKET_SHARE)
        if by_socket and isinstance(body, dict):
            body.setdefault("type", "response.create")
        if body is None or chance.random() < _PATH_SHARE:
            path = _mutate_path(path, chance)
        content = b"" if body is None else _mutate_body(body, chance)
        return FuzzRequest(number, seed.method, path, content, by_socket)


def _insert_ids(seed: Seed, ids: ObjectIds) -> tuple[str, Any]:
    body = None if seed.body is None else json.loads(_replace_ids(json.dumps(seed.body), ids))
    return _replace_ids(seed.path, ids), body


def _limit_output(seed: Seed) -> Seed:
    """Limit the length of the response; a valid request stays valid."""
    if seed.path == CREATE and isinstance(seed.body, dict):
        return Seed(seed.method, seed.path, {"max_output_tokens": _MAX_TOKENS, **seed.body}, seed.by_socket)
    return seed


def _replace_ids(text: str, ids: ObjectIds) -> str:
    text = text.replace("http://127.0.0.1:3001/mcp", _CLOSED_URL)
    return _ID.sub(lambda found: ids.get(found[1], found[0]), text)


def _mutate_path(path: str, chance: random.Random) -> str:
    return "/" + quote(mutate(path.encode()[1:], chance), safe="/?=&%[]") if chance.random() < 0.8 else path


def _mutate_body(body: Any, chance: random.Random) -> bytes:
    match chance.randrange(12):
        case 0:
            return json.dumps(body).encode()
        case 1 | 2 | 3:
            return mutate(msgspec.json.encode(body), chance)
        case 4 | 5:
            return _mutate_raw(json.dumps(body).encode(), chance)
        case _:
            for _ in range(chance.choice((1, 1, 1, 2, 4))):
                body = chance.choice(BODY_MUTATIONS)(body, chance)
            return json.dumps(body).encode("utf-8", "surrogatepass")


def _mutate_raw(body: bytes, chance: random.Random) -> bytes:
    """Produce invalid JSON, or JSON that cannot be encoded from values."""
    (event,) = chance.choice((mistype_value, insert_invalid_literal, nest_value))([_PREFIX + body], chance)
    return event.removeprefix(_PREFIX)


def _drop(body: Any, chance: random.Random) -> Any:
    holder, key = _choose_slot(body, chance)
    if holder is not None:
        del holder[key]
    return body


def _duplicate(body: Any, chance: random.Random) -> Any:
    """Repeat an element of a list, or add a value under another name."""
    holder, key = _choose_slot(body, chance)
    if isinstance(holder, list):
        holder[key:key] = [_copy(holder[key]) for _ in range(chance.choice((1, 1, 2, 30)))]
    elif holder is not None:
        holder[chance.choice((*_KEYS, key + "s", key.upper()))] = _copy(holder[key])
    return body


def _replace(body: Any, chance: random.Random) -> Any:
    holder, key = _choose_slot(body, chance)
    value = _copy(chance.choice(_VALUES))
    if holder is None:
        return value
    holder[key] = value
    return body


def _nest(body: Any, chance: random.Random) -> Any:
    holder, key = _choose_slot(body, chance)
    if holder is not None:
        for _ in range(chance.choice((1, 1, 2, 70, 150))):
            holder[key] = chance.choice(([holder[key]], {str(key): holder[key]}))
    return body


def _swap(body: Any, chance: random.Random) -> Any:
    """Swap copies of two values; if one contains the other, the inner one occurs twice."""
    (one, at), (other, there) = _choose_slot(body, chance), _choose_slot(body, chance)
    if one is not None and other is not None:
        copies = _copy([one[at], other[there]])
        one[at], other[there] = copies[1], copies[0]
    return body


def _retype(body: Any, chance: random.Random) -> Any:
    holder, key = _choose_slot(body, chance)
    if holder is not None:
        value = holder[key]
        holder[key] = chance.choice(
            (lambda: str(value), lambda: json.dumps(value), lambda: [value], lambda: bool(value))
        )()
    return body


BODY_MUTATIONS: tuple[BodyMutation, ...] = (_drop, _duplicate, _replace, _replace, _replace, _nest, _swap, _retype)


def _copy(value: Any) -> Any:
    """Copy a value through JSON: `deepcopy` reaches the recursion limit earlier."""
    return json.loads(json.dumps(value))


def _choose_slot(body: Any, chance: random.Random) -> tuple[Any, Any]:
    """Return container and key of a random value, at any depth; None if the body contains no value."""
    holder, key, value = None, None, body
    while isinstance(value, (dict, list)) and value and (holder is None or chance.random() < 0.7):
        holder, key = value, chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        value = holder[key]
    return holder, key
