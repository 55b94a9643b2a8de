"""What models of each family said when they called tools, with its source and what comes of it.

A file here is named by the format and holds a list of recordings. `tools` are the parameters of what was offered, by
name. Expected is what was said and called, in order: {"text": …} or {"call": name, "arguments": as JSON text}.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.core.deltas import CallDelta, CallDone, CallStarted
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece, Said
from antiphon.parsers.calls.registry import load_format

FOLDER = Path(__file__).parent


class Source(Struct, kw_only=True, omit_defaults=True):
    repository: str
    path: str
    commit: str
    note: str = ""  # what was done to it, such as cutting its end off


class Told(Struct, kw_only=True, omit_defaults=True):
    text: str | UnsetType = UNSET
    call: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class Recording(Struct, kw_only=True, omit_defaults=True):
    name: str
    source: Source
    output: str
    broken: bool = False  # it cannot be mended: its arguments are passed on as they were said, and do not parse
    tools: dict[str, Json] = {}
    expected: list[Told] = []


def load(form: str) -> list[Recording]:
    """None at all where the format has no file."""
    path = FOLDER / f"{form}.json"
    return msgspec.json.decode(path.read_bytes(), type=list[Recording]) if path.exists() else []


def schemas(recording: Recording) -> dict[str, Json]:
    return {
        name: {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, parameters in recording.tools.items()
    }


def play(form: str, recording: Recording, parts: Iterable[str]) -> list[Told]:
    reader = load_format(form)(schemas(recording))
    pieces = [piece for part in parts for piece in reader.feed(part)]
    return told([*pieces, *reader.finish()])


def told(pieces: Iterable[Piece]) -> list[Told]:
    """Neighbouring text is joined, and so are the arguments of a call. Every call must be done, and once."""
    out: list[Told] = []
    said: dict[int, list[str]] = {}  # of the calls that are open
    places: dict[int, Told] = {}
    for piece in pieces:
        match piece:
            case Said(text=text) if out and out[-1].text is not UNSET:
                out[-1].text += text
            case Said(text=text):
                out.append(Told(text=text))
            case CallStarted(key=key, name=name):
                assert key not in places, f"the key {key} was used twice"
                said[key] = []
                places[key] = Told(call=name)
                out.append(places[key])
            case CallDelta(key=key, text=text):
                said[key].append(text)
            case CallDone(key=key):
                places[key].arguments = "".join(said.pop(key))
    assert not said, "a call was not done"
    return out
