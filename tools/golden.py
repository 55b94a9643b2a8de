"""Golden recordings: the bytes that engines sent, and what came of them.

    python -m tools.golden record URL [CASE…]     asks a real engine anew → tests/golden/ENGINE/CASE.json
    python -m tools.golden expect                 replays all of them → tests/golden/ENGINE/CASE.expected.json

A recording holds each request and the whole answer as it was on the wire. Where there was no engine to record, the file
was written by hand from its documentation and source, and says so in `how`.
"""

import asyncio
import random
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.engines.base import Deed
from antiphon.engines.connection import Address, Connection, Hope, TcpAddress, UnixAddress
from antiphon.engines.http.base import HttpEngine, HttpSettings
from antiphon.engines.http.engine_url import place
from antiphon.engines.registry import ENGINES
from antiphon.errors import AntiphonError
from tools.golden_cases import CASES, kind_of

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
EXPECTED = ".expected.json"
RECORDED = "recorded by tools/golden.py from the real server"


class Exchange(Struct):
    """A request as `METHOD path` and its body, and the answer with its head, in pieces that came together."""

    request: str
    body: str
    answer: str


class Recording(Struct):
    engine: str
    version: str | None
    how: str
    exchanges: list[Exchange]


class _Heard(Connection):
    """Keeps what goes over it."""

    def __init__(self, who: str, exchanges: list[Exchange]) -> None:
        super().__init__(who)
        self._exchanges = exchanges
        self._data: list[bytes] = []
        self._request = b""

    def ask(self, request: bytes, seconds: float, hope: Hope | None = None) -> "asyncio.Future[None]":
        self._note()
        self._request = request
        return super().ask(request, seconds, hope)

    def data_received(self, data: bytes) -> None:
        self._data.append(data)
        super().data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._note()
        super().connection_lost(error)

    def _note(self) -> None:
        if self._request and self._data:
            line, body = asked(self._request)
            self._exchanges.append(Exchange(line, _scrubbed(body), _scrubbed(b"".join(self._data).decode())))
        self._request, self._data = b"", []


class Listening(Struct):
    """An address whose connections are recorded."""

    address: Address
    exchanges: list[Exchange]

    async def connect(self, who: str) -> Connection:
        loop = asyncio.get_running_loop()
        made = lambda: _Heard(who, self.exchanges)  # noqa: E731
        match self.address:
            case UnixAddress(path=path):
                return (await loop.create_unix_connection(made, path))[1]
            case TcpAddress(host=host, port=port):
                return (await loop.create_connection(made, host, port))[1]
            case _:
                raise TypeError("only plain addresses are recorded")


class _Played(asyncio.Transport):
    """A connection to a recording. The answer comes in pieces that are cut anywhere."""

    def __init__(self, connection: Connection, exchanges: list[Exchange], chance: random.Random) -> None:
        super().__init__()
        self._connection = connection
        self._exchanges = exchanges
        self._chance = chance
        self._pieces: list[bytes] = []
        self._closed = False

    def write(self, data: Any) -> None:
        line, body = asked(data)
        found = next((one for one in self._exchanges if one.request == line and _same(one.body, body)), None)
        if found is None:
            raise LookupError(f"nobody recorded {line} with {body[:2000]}")
        whole = found.answer.encode()
        places = sorted(self._chance.choices(range(len(whole) + 1), k=self._chance.randint(0, 30)))
        self._pieces = [whole[begin:end] for begin, end in pairwise([0, *places, len(whole)]) if begin < end]
        self._next()

    def _next(self) -> None:
        asyncio.get_running_loop().call_soon(self._play)

    def _play(self) -> None:
        if self._pieces and not self._closed:
            self._connection.data_received(self._pieces.pop(0))
            self._next()

    def is_closing(self) -> bool:
        return self._closed

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Playing(Struct):
    """The address of a recording; `seed` decides where answers are cut."""

    exchanges: list[Exchange]
    seed: int

    async def connect(self, who: str) -> Connection:
        connection = Connection(who)
        connection.connection_made(_Played(connection, self.exchanges, random.Random(self.seed)))
        return connection


def asked(request: bytes) -> tuple[str, str]:
    head, _, body = request.partition(b"\r\n\r\n")
    method, path, _ = head.split(b"\r\n")[0].split(b" ")
    return f"{method.decode()} {path.decode()}", body.decode()


def _same(one: str, other: str) -> bool:
    """JSON may be written in two ways; a form is not."""
    json = one.startswith("{") and other.startswith("{")
    return one == other or (json and msgspec.json.decode(one) == msgspec.json.decode(other))


def _scrubbed(answer: str) -> str:
    """Without the folder of whoever recorded it, and of the same length."""
    return re.sub(
        r'(?<=")/[^"]*/(?=[^/"]+")|(?<=-path )/[^ "]*/', lambda found: f"/{'_' * (len(found[0]) - 2)}/", answer
    )


async def results(engine: HttpEngine, case: str) -> Any:
    """What comes of a case, with an engine that is opened for it."""
    await engine.open()
    try:
        return [await step(engine) for step in CASES[case].steps]
    except AntiphonError as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        await engine.close()


def made(kind: str, address: Address, level: str) -> HttpEngine:
    module, _, name = ENGINES[kind].partition(":")
    engine: type[HttpEngine] = getattr(import_module(module), name)
    settings: dict[str, Any] = {"engine": f"{kind}://recorded:1", "engine_level": level}
    return engine(HttpSettings(**settings), address)


async def record(url: str, cases: Sequence[str]) -> None:
    kind = url.partition(":")[0].partition("+")[0]
    address = place(url, 80).address
    (GOLDEN / kind).mkdir(parents=True, exist_ok=True)
    kinds = await _kinds(made(kind, address, "chat"))
    for case in cases or [name for name, case in CASES.items() if case.kind in kinds]:
        exchanges: list[Exchange] = []
        engine = made(kind, Listening(address, exchanges), CASES[case].level)
        if any(isinstance(result, str) for result in await results(engine, case)):
            print(f"{kind} has no {case}")
            continue
        await asyncio.sleep(0.1)  # connections are closed in the next turns of the loop
        version = (await engine.capabilities("")).version
        path = GOLDEN / kind / f"{case}.json"
        known = [] if path == _opening(path) else read(_opening(path)).exchanges
        fresh = [one for one in exchanges if all((one.request, one.body) != (old.request, old.body) for old in known)]
        _write(path, Recording(kind, version, RECORDED, fresh))


async def _kinds(engine: HttpEngine) -> set[Deed]:
    """Of its models."""
    await engine.open()
    try:
        return {kind_of((await engine.capabilities(model.id)).does) for model in engine.models()}
    finally:
        await engine.close()


def recordings() -> list[Path]:
    """All there are: in the folders that are named by an engine. What else is recorded there is not about wires."""
    found = [path for engine in ENGINES for path in (GOLDEN / engine).glob("*.json")]
    return sorted(path for path in found if not path.name.endswith(EXPECTED))


def read(path: Path) -> Recording:
    return msgspec.json.decode(path.read_bytes(), type=Recording)


def _opening(path: Path) -> Path:
    """Where the first questions to the engine are, which every case asks."""
    return path.with_name(f"{CASES[path.stem].opening}.json")


async def replay(path: Path, seed: int) -> Any:
    recording = read(path)
    exchanges = [*recording.exchanges, *read(_opening(path)).exchanges]
    engine = made(recording.engine, Playing(exchanges, seed), CASES[path.stem].level)
    return msgspec.json.decode(msgspec.json.encode(await results(engine, path.stem)))


def expected(path: Path) -> Path:
    return path.with_name(path.stem + EXPECTED)


def _write(path: Path, value: Any) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    print(f"wrote {path.relative_to(GOLDEN.parent.parent)}")


def main(arguments: list[str]) -> int:
    match arguments:
        case ["record", url, *cases]:
            asyncio.run(record(url, cases))
        case ["expect"]:
            for path in recordings():
                _write(expected(path), asyncio.run(replay(path, 0)))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
