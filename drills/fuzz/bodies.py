"""What clients that are not well could send: what real ones sent, and the examples of our own document, each changed in
one place or a few. A number says which, so that whatever was found once is found again."""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from drills.engines.event_mutations import deep, huge, mistyped
from tests.engines.http.stubs.mutations import mutated

RECORDINGS = Path(__file__).parents[2] / "tests" / "recordings"
CREATE = "/v1/responses"
Json = dict[str, Any]

_ID = re.compile(r"\b(resp|msg|rs|fc|ctc|call|conv)_[0-9a-f]{20,}\b")
_NOBODY = "http://127.0.0.1:1/mcp"  # in place of the MCP server that was recorded: nobody listens there
_TOKENS = 16  # of an answer: it is the request that is looked at
_PREFIX = b"data: "
_SOCKETS, _BENT = 0.2, 0.05  # shares
_WORDS: Sequence[Any] = (
    "", "\0", "\ud800", "\u202e", "x" * 70_000, "é" * 600, "../../etc/passwd", "resp_" + "0" * 32, "{}", "$ref", "[",
    0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**400, 0.1, -0.0, 1e308, 5e-324, float("nan"), float("inf"),
    True, False, None, [], {}, [[]], [{}], [None], {"": None}, {"type": "x"}, {"$ref": "#"}, "auto", "required",
    "function", "user", "system", "assistant", "json_schema", "data:image/png;base64,AAAA", "http://127.0.0.1:1/",
    "input_file",
)  # fmt: skip
_NAMES = (
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


class Sent(Struct, frozen=True):
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


Given = dict[str, str]  # the kind of an id → one of ours, which is there
Change = Callable[[Any, random.Random], Any]


def recorded() -> Iterator[Seed]:
    for path in sorted(RECORDINGS.glob("*.json")):
        for request in json.loads(path.read_bytes()):
            if "frames" in request:
                yield from (Seed("GET", CREATE, one["client"], True) for one in request["frames"] if "client" in one)
                continue
            query = urlencode([*map(tuple, request["query"])])
            yield Seed(request["method"], f"/v1/{request['tail']}{'?' if query else ''}{query}", request.get("body"))


def shown(document: Json) -> Iterator[Seed]:
    """The examples of an OpenAPI document; ids in paths are recorded ones, which become ours."""
    for path, operations in document["paths"].items():
        filled = re.sub(r"{(\w+)_id}", lambda found: f"{_KINDS.get(found[1], 'call')}_{'0' * 24}", path)
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            yield Seed(method.upper(), filled, content.get("example"))


_KINDS = {"response": "resp", "conversation": "conv", "item": "msg"}


class Bodies:
    def __init__(self, seeds: Sequence[Seed], salt: int = 0) -> None:
        self._seeds = [_short(seed) for seed in seeds]
        self._salt = salt

    def plain(self, given: Given) -> Iterator[Sent]:
        """All of them as they were, each once."""
        for number, seed in enumerate(self._seeds):
            path, body = _filled(seed, given)
            yield Sent(number, seed.method, path, b"" if body is None else json.dumps(body).encode(), seed.by_socket)

    def sent(self, number: int, given: Given) -> Sent:
        """`given`: what is there to be named."""
        chance = random.Random(f"{self._salt}:{number}")
        seed = chance.choice(self._seeds)
        path, body = _filled(seed, given)
        by_socket = seed.by_socket or (seed.path == CREATE and body is not None and chance.random() < _SOCKETS)
        if by_socket and isinstance(body, dict):
            body.setdefault("type", "response.create")
        if body is None or chance.random() < _BENT:
            path = _bent(path, chance)
        changed = b"" if body is None else _changed(body, chance)
        return Sent(number, seed.method, path, changed, by_socket)


def _filled(seed: Seed, given: Given) -> tuple[str, Any]:
    body = None if seed.body is None else json.loads(_named(json.dumps(seed.body), given))
    return _named(seed.path, given), body


def _short(seed: Seed) -> Seed:
    """A response that is not to be long: only requests that were valid without are changed, and stay valid."""
    if seed.path == CREATE and isinstance(seed.body, dict):
        return Seed(seed.method, seed.path, {"max_output_tokens": _TOKENS, **seed.body}, seed.by_socket)
    return seed


def _named(text: str, given: Given) -> str:
    text = text.replace("http://127.0.0.1:3001/mcp", _NOBODY)
    return _ID.sub(lambda found: given.get(found[1], found[0]), text)


def _bent(path: str, chance: random.Random) -> str:
    return "/" + quote(mutated(path.encode()[1:], chance), safe="/?=&%[]") if chance.random() < 0.8 else path


def _changed(body: Any, chance: random.Random) -> bytes:
    match chance.randrange(12):
        case 0:
            return json.dumps(body).encode()
        case 1 | 2 | 3:
            return mutated(msgspec.json.encode(body), chance)
        case 4 | 5:
            return _raw(json.dumps(body).encode(), chance)
        case _:
            for _ in range(chance.choice((1, 1, 1, 2, 4))):
                body = chance.choice(CHANGES)(body, chance)
            return json.dumps(body).encode("utf-8", "surrogatepass")


def _raw(body: bytes, chance: random.Random) -> bytes:
    """What stands there is JSON no more, or JSON that cannot be made from values."""
    (event,) = chance.choice((mistyped, huge, deep))([_PREFIX + body], chance)
    return event.removeprefix(_PREFIX)


def _dropped(body: Any, chance: random.Random) -> Any:
    holder, key = _place(body, chance)
    if holder is not None:
        del holder[key]
    return body


def _doubled(body: Any, chance: random.Random) -> Any:
    """An element of a list comes more than once; a value comes under another name, too."""
    holder, key = _place(body, chance)
    if isinstance(holder, list):
        holder[key:key] = [_copied(holder[key]) for _ in range(chance.choice((1, 1, 2, 30)))]
    elif holder is not None:
        holder[chance.choice((*_NAMES, key + "s", key.upper()))] = _copied(holder[key])
    return body


def _replaced(body: Any, chance: random.Random) -> Any:
    holder, key = _place(body, chance)
    word = _copied(chance.choice(_WORDS))
    if holder is None:
        return word
    holder[key] = word
    return body


def _nested(body: Any, chance: random.Random) -> Any:
    holder, key = _place(body, chance)
    if holder is not None:
        for _ in range(chance.choice((1, 1, 2, 70, 150))):
            holder[key] = chance.choice(([holder[key]], {str(key): holder[key]}))
    return body


def _swapped(body: Any, chance: random.Random) -> Any:
    """Two values change places; one of them may be in the other, which then is there twice."""
    (one, at), (other, there) = _place(body, chance), _place(body, chance)
    if one is not None and other is not None:
        copies = _copied([one[at], other[there]])
        one[at], other[there] = copies[1], copies[0]
    return body


def _retyped(body: Any, chance: random.Random) -> Any:
    holder, key = _place(body, chance)
    if holder is not None:
        value = holder[key]
        holder[key] = chance.choice(
            (lambda: str(value), lambda: json.dumps(value), lambda: [value], lambda: bool(value))
        )()
    return body


CHANGES: tuple[Change, ...] = (_dropped, _doubled, _replaced, _replaced, _replaced, _nested, _swapped, _retyped)


def _copied(value: Any) -> Any:
    """`deepcopy` is at its end where JSON is not yet too deep."""
    return json.loads(json.dumps(value))


def _place(body: Any, chance: random.Random) -> tuple[Any, Any]:
    """Somewhere in it: near its top as likely as deep in it. None, if there is nothing in it."""
    holder, key, value = None, None, body
    while isinstance(value, (dict, list)) and value and (holder is None or chance.random() < 0.7):
        holder, key = value, chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        value = holder[key]
    return holder, key
