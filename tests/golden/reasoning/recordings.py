"""Output of models of each family that reason, with its source and the expected result.

Most of it was not recorded from a model: the `kind` of a source says where the text comes from. The expected results
are those of Antiphon, written by `rewrite.py` and reviewed.

Each file is named after a row of parsers/reasoning.py and holds a list of recordings. `prompt` is the end of
the prompt, if it matters; `unseen` means that the engine built the prompt. `expected` lists reasoning, text and calls
in order.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.core.prompt import Chunk, Json, Segment, TextPrompt
from antiphon.parsers.base import ParserOptions
from antiphon.parsers.raw import RawParser
from tests.parsers.joined_deltas import join_deltas, run_parser

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
    prompt: str = ""
    unseen: bool = False
    calls: str | None = None  # call format
    tools: dict[str, Json] = {}  # parameters by name
    expected: list[tuple[str, str]] = []


def load_recordings(family: str) -> list[Recording]:
    """Return the recordings of a family; empty if it has no file."""
    path = FOLDER / f"{family}.json"
    return msgspec.json.decode(path.read_bytes(), type=list[Recording]) if path.exists() else []


def parse_recording(family: str, recording: Recording, parts: Iterable[str]) -> list[tuple[str, str]]:
    tools = {
        name: {"function": {"name": name, "parameters": parameters}} for name, parameters in recording.tools.items()
    }
    reading = ParserOptions(reasoning=family, calls=recording.calls, tools=tools, prompt_hidden=recording.unseen)
    prompt = TextPrompt((Segment(recording.prompt, True),) if recording.prompt else ())
    return join_deltas(run_parser(RawParser(prompt, reading), [Chunk(text=part) for part in parts]))
