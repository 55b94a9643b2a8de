"""Output of models of each family that call tools, with its source and the expected result.

Most of it was not recorded from a model: the `kind` of a source says where the text comes from. The expected results
are those of Antiphon, written by `rewrite.py` and reviewed.

Each file is named after a call format and holds a list of recordings. `tools` holds the parameters of the offered tools
by name. `expected` lists text and calls in order: {"text": …} or {"call": name, "arguments": JSON text}.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.core.prompt import Json
from antiphon.parsers.calls.registry import load_format
from antiphon.testing.call_format_tests import ParsedPiece, collect_pieces

FOLDER = Path(__file__).parent


class Source(Struct, kw_only=True, omit_defaults=True):
    kind: Literal["model output", "test string", "own text"]  # "test string": of a test in that repository
    repository: str
    path: str
    commit: str
    note: str = ""  # changes to the recording, such as truncation


class Recording(Struct, kw_only=True, omit_defaults=True):
    name: str
    source: Source
    output: str
    broken: bool = False  # irreparable: its arguments are passed on unchanged and do not parse
    tools: dict[str, Json] = {}
    expected: list[ParsedPiece] = []


def load_recordings(form: str) -> list[Recording]:
    """Return the recordings of a format; empty if it has no file."""
    path = FOLDER / f"{form}.json"
    return msgspec.json.decode(path.read_bytes(), type=list[Recording]) if path.exists() else []


def build_schemas(recording: Recording) -> dict[str, Json]:
    return {
        name: {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, parameters in recording.tools.items()
    }


def parse_recording(form: str, recording: Recording, parts: Iterable[str]) -> list[ParsedPiece]:
    reader = load_format(form)(build_schemas(recording))
    pieces = [piece for part in parts for piece in reader.feed(part)]
    return collect_pieces([*pieces, *reader.finish()])
