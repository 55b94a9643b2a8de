"""Golden recordings: the bytes that engines sent, and the results that Antiphon produces from them.

    python -m tools.golden record URL [CASE…]     records a real engine → tests/golden/ENGINE/CASE.json
    python -m tools.golden expect                 replays all recordings → tests/golden/ENGINE/CASE.expected.json

A recording holds each request and the complete response as it was on the wire. Where no engine was available, the file
was written by hand from its documentation and source; the field `how` says so.
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

from antiphon.engines.base import Task
from antiphon.engines.connection import (
    EngineAddress,
    EngineConnection,
    HttpRequest,
    TcpAddress,
    UnixAddress,
    WaitPolicy,
)
from antiphon.engines.http.base import HttpEngine, HttpSettings
from antiphon.engines.http.engine_url import parse_engine_url
from antiphon.engines.registry import ENGINES
from antiphon.errors import AntiphonError
from tools.golden_cases import CASES, find_main_task

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
EXPECTED = ".expected.json"
RECORDED_BY_TOOL = "recorded by tools/golden.py from the real server"


class RecordedExchange(Struct):
    """A request as `METHOD path` with its body, and the complete response with its head."""

    request: str
    body: str
    answer: str


class Recording(Struct):
    engine: str
    version: str | None
    how: str
    exchanges: list[RecordedExchange]


class _RecordingConnection(EngineConnection):
    """Records the requests and responses of a connection."""

    def __init__(self, label: str, exchanges: list[RecordedExchange]) -> None:
        super().__init__(label)
        self._exchanges = exchanges
        self._data: list[bytes] = []
        self._request = b""

    def send_request(
        self, request: HttpRequest, seconds: float, hope: WaitPolicy | None = None
    ) -> "asyncio.Future[None]":
        self._save_exchange()
        self._request = b"".join(request)
        return super().send_request(request, seconds, hope)

    def data_received(self, data: bytes) -> None:
        self._data.append(data)
        super().data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._save_exchange()
        super().connection_lost(error)

    def _save_exchange(self) -> None:
        if self._request and self._data:
            line, body = parse_request(self._request)
            self._exchanges.append(
                RecordedExchange(line, _scrub_paths(body), _scrub_paths(b"".join(self._data).decode()))
            )
        self._request, self._data = b"", []


class RecordingAddress(Struct):
    """An address whose connections are recorded."""

    address: EngineAddress
    exchanges: list[RecordedExchange]

    async def connect(self, label: str) -> EngineConnection:
        loop = asyncio.get_running_loop()
        factory = lambda: _RecordingConnection(label, self.exchanges)  # noqa: E731
        match self.address:
            case UnixAddress(path=path):
                return (await loop.create_unix_connection(factory, path))[1]
            case TcpAddress(host=host, port=port):
                return (await loop.create_connection(factory, host, port))[1]
            case _:
                raise TypeError("only addresses without TLS can be recorded")


_NO_ROUTE = (
    'HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 22\r\n\r\n{"detail":"Not Found"}'
)


class _ReplayTransport(asyncio.Transport):
    """A transport that answers from a recording, in pieces that are split at random positions."""

    def __init__(self, connection: EngineConnection, exchanges: list[RecordedExchange], rng: random.Random) -> None:
        super().__init__()
        self._connection = connection
        self._exchanges = exchanges
        self._rng = rng
        self._pieces: list[bytes] = []
        self._closed = False

    def write(self, data: Any) -> None:
        line, body = parse_request(data)
        response = self._find_answer(line, body).encode()
        positions = sorted(self._rng.choices(range(len(response) + 1), k=self._rng.randint(0, 30)))
        self._pieces = [response[begin:end] for begin, end in pairwise([0, *positions, len(response)]) if begin < end]
        self._schedule_next()

    def _find_answer(self, line: str, body: str) -> str:
        """Return the recorded answer. Probes of audio are newer than the recordings, and are answered like others: the
        recorded servers have no speech, and their models reject audio as they reject images.
        """
        if line.endswith("/audio/speech"):
            return _NO_ROUTE
        same_line = [one for one in self._exchanges if one.request == line]
        found = next((one for one in same_line if _is_same_body(one.body, body)), None)
        if found is None and '"input_audio"' in body:
            found = next((one for one in same_line if '"image_url"' in one.body), None)
        if found is None:
            raise LookupError(f"there is no recording of {line} with {body[:2000]}")
        return found.answer

    def _schedule_next(self) -> None:
        asyncio.get_running_loop().call_soon(self._deliver_piece)

    def _deliver_piece(self) -> None:
        if self._pieces and not self._closed:
            self._connection.data_received(self._pieces.pop(0))
            self._schedule_next()

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


class ReplayAddress(Struct):
    """The address of a recording; `seed` determines where responses are split."""

    exchanges: list[RecordedExchange]
    seed: int

    async def connect(self, label: str) -> EngineConnection:
        connection = EngineConnection(label)
        connection.connection_made(_ReplayTransport(connection, self.exchanges, random.Random(self.seed)))
        return connection


def parse_request(request: bytes) -> tuple[str, str]:
    head, _, body = request.partition(b"\r\n\r\n")
    method, path, _ = head.split(b"\r\n")[0].split(b" ")
    return f"{method.decode()} {path.decode()}", body.decode()


def _is_same_body(one: str, other: str) -> bool:
    """Compare two bodies: JSON by its value, forms by their text."""
    both_json = one.startswith("{") and other.startswith("{")
    return one == other or (both_json and msgspec.json.decode(one) == msgspec.json.decode(other))


def _scrub_paths(text: str) -> str:
    """Replace the local folders in paths by underscores, so that the length stays the same."""
    return re.sub(r'(?<=")/[^"]*/(?=[^/"]+")|(?<=-path )/[^ "]*/', lambda found: f"/{'_' * (len(found[0]) - 2)}/", text)


async def run_case(engine: HttpEngine, case: str) -> Any:
    """Return the results of a case, with an engine that is opened for it."""
    await engine.open()
    try:
        return [await step(engine) for step in CASES[case].steps]
    except AntiphonError as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        await engine.close()


def make_engine(kind: str, address: EngineAddress, level: str) -> HttpEngine:
    module, _, name = ENGINES[kind].partition(":")
    engine_class: type[HttpEngine] = getattr(import_module(module), name)
    settings: dict[str, Any] = {"engine": f"{kind}://recorded:1", "engine_level": level}
    return engine_class(HttpSettings(**settings), address)


async def record(url: str, cases: Sequence[str]) -> None:
    kind = url.partition(":")[0].partition("+")[0]
    address = parse_engine_url(url, 80).address
    (GOLDEN / kind).mkdir(parents=True, exist_ok=True)
    kinds = await _find_kinds(make_engine(kind, address, "chat"))
    for case in cases or [name for name, case in CASES.items() if case.kind in kinds]:
        exchanges: list[RecordedExchange] = []
        engine = make_engine(kind, RecordingAddress(address, exchanges), CASES[case].level)
        if any(isinstance(result, str) for result in await run_case(engine, case)):
            print(f"{kind} does not support {case}")
            continue
        await asyncio.sleep(0.1)  # connections are closed in the next iterations of the loop
        version = (await engine.capabilities("")).version
        path = GOLDEN / kind / f"{case}.json"
        shared = [] if path == _opening_path(path) else load_recording(_opening_path(path)).exchanges
        new = [one for one in exchanges if all((one.request, one.body) != (old.request, old.body) for old in shared)]
        _write(path, Recording(kind, version, RECORDED_BY_TOOL, new))


async def _find_kinds(engine: HttpEngine) -> set[Task]:
    """Return the kinds of the engine's models."""
    await engine.open()
    try:
        return {find_main_task((await engine.capabilities(model.id)).tasks) for model in engine.models()}
    finally:
        await engine.close()


def list_recordings() -> list[Path]:
    """Return all recordings of engines: those in folders named after an engine. Other folders hold recordings of other
    kinds.
    """
    found = [path for engine in ENGINES for path in (GOLDEN / engine).glob("*.json")]
    return sorted(path for path in found if not path.name.endswith(EXPECTED))


def load_recording(path: Path) -> Recording:
    return msgspec.json.decode(path.read_bytes(), type=Recording)


def _opening_path(path: Path) -> Path:
    """Return the path of the recording with the first requests to the engine, which every case sends."""
    return path.with_name(f"{CASES[path.stem].opening}.json")


async def replay(path: Path, seed: int) -> Any:
    recording = load_recording(path)
    exchanges = [*recording.exchanges, *load_recording(_opening_path(path)).exchanges]
    engine = make_engine(recording.engine, ReplayAddress(exchanges, seed), CASES[path.stem].level)
    return msgspec.json.decode(msgspec.json.encode(await run_case(engine, path.stem)))


def expected_path(path: Path) -> Path:
    return path.with_name(path.stem + EXPECTED)


def _write(path: Path, value: Any) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
    print(f"wrote {path.relative_to(GOLDEN.parent.parent)}")


def main(arguments: list[str]) -> int:
    match arguments:
        case ["record", url, *cases]:
            asyncio.run(record(url, cases))
        case ["expect"]:
            for path in list_recordings():
                _write(expected_path(path), asyncio.run(replay(path, 0)))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
