"""What models of each family said when they thought, with its source and what comes of it.

A file here is named by the row of parsers/reasoning/formats.py and holds a list of recordings. `prompt` is what the
prompt ended
with, if it matters; `unseen`: the engine made the prompt. Expected is what was thought, said and called, in order.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.core.prompt import Chunk, Json, Segment, TextPrompt
from antiphon.parsers.base import Reading
from antiphon.parsers.raw import RawParser
from tests.parsers.joined_deltas import everything, joined

FOLDER = Path(__file__).parent


class Source(Struct, kw_only=True, omit_defaults=True):
    repository: str
    path: str
    commit: str
    note: str = ""  # what was done to it, such as cutting its end off


class Recording(Struct, kw_only=True, omit_defaults=True):
    name: str
    source: Source
    output: str
    prompt: str = ""
    unseen: bool = False
    calls: str | None = None  # the format of its calls
    tools: dict[str, Json] = {}  # parameters by name
    expected: list[tuple[str, str]] = []


def load(family: str) -> list[Recording]:
    """None at all where the family has no file."""
    path = FOLDER / f"{family}.json"
    return msgspec.json.decode(path.read_bytes(), type=list[Recording]) if path.exists() else []


def play(family: str, recording: Recording, parts: Iterable[str]) -> list[tuple[str, str]]:
    tools = {name: {"function": {"name": name, "parameters": told}} for name, told in recording.tools.items()}
    reading = Reading(thoughts=family, calls=recording.calls, tools=tools, unseen=recording.unseen)
    prompt = TextPrompt((Segment(recording.prompt, True),) if recording.prompt else ())
    return joined(everything(RawParser(prompt, reading), [Chunk(text=part) for part in parts]))
