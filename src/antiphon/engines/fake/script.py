"""Script files for the fake engine: TOML, a table [[reply]] for each reply; docs/fake-engine.md tells the format.

The first reply whose `request` and `when` hold is played. A file that is wrong is one sentence at start-up
that names the file, the reply and the field.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from msgspec import UNSET, Meta, Struct, ValidationError, convert
from msgspec.json import encode

from antiphon.core.prompt import CallPiece, Chunk, Counts, Finish, Json, Work
from antiphon.engines.fake.harmony_loader import harmony
from antiphon.engines.fake.prompt_reader import Reading
from antiphon.engines.fake.reply import Automatic, Burst, Fault, Pause, Reply, Silence, Step
from antiphon.errors import ContextTooLong, EngineFailed, StartupError, Unavailable

Words = str | list[str]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]


class CallStep(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: str | list[str] | Json = "{}"
    chunks: Positive = 1


class ErrorStep(Struct, frozen=True, forbid_unknown_fields=True):
    message: str
    kind: Literal["engine", "unavailable", "context", "crash"] = "engine"
    retry_after: Seconds | None = None


class PieceTable(CallPiece, frozen=True, forbid_unknown_fields=True):
    pass


class ChunkTable(Chunk, kw_only=True, gc=False, forbid_unknown_fields=True):
    calls: tuple[PieceTable, ...] = ()


class UsageTable(Counts, frozen=True, forbid_unknown_fields=True):
    pass


class StepTable(Struct, frozen=True, forbid_unknown_fields=True):
    """One of these, and for what is said how often and whether it arrives together."""

    say: Words | None = None
    think: Words | None = None
    refuse: Words | None = None
    call: CallStep | None = None
    calls: list[CallStep] | None = None
    chunk: ChunkTable | None = None
    tokens: list[int] | None = None
    harmony: str | None = None
    answer: Literal[True] | None = None
    delay: Seconds | None = None
    silence: Literal[True] | None = None
    error: ErrorStep | None = None
    repeat: Positive = 1
    together: bool = False


_ACTIONS = tuple(name for name in StepTable.__struct_fields__ if name not in ("repeat", "together"))


class When(Struct, frozen=True, forbid_unknown_fields=True):
    contains: str | None = None  # in the last user text
    model: str | None = None
    tool: str | None = None  # the name of one that may be called
    output: str | None = None  # in a tool output at the end
    prompt: str | None = None  # anywhere in the prompt

    def holds(self, work: Work, reading: Reading) -> bool:
        return (
            (self.contains is None or self.contains in reading.said)
            and (self.model is None or self.model == work.model)
            and (self.tool is None or any(self.tool == tool.name for tool in reading.tools))
            and (self.output is None or any(self.output in output for output in reading.outputs))
            and (self.prompt is None or self.prompt in reading.text)
        )


class ReplyTable(Struct, frozen=True, forbid_unknown_fields=True):
    request: Positive | None = None
    when: When = When()
    times: Annotated[int, Meta(ge=0)] | None = None
    steps: list[StepTable] = []
    finish: str | None = None
    usage: UsageTable | None = None


class Script:
    def __init__(self, replies: Sequence[tuple[ReplyTable, Reply]]) -> None:
        self._replies = replies
        self._played = [0] * len(replies)

    def match(self, number: int, work: Work, reading: Reading) -> Reply | None:
        for place, (table, reply) in enumerate(self._replies):
            if self._is_due(place, table, number) and table.when.holds(work, reading):
                self._played[place] += 1
                return reply
        return None

    def _is_due(self, place: int, table: ReplyTable, number: int) -> bool:
        """`times` counts from `request` on, or else how often it was played; 0 is for ever."""
        if table.request is None:
            return not table.times or self._played[place] < table.times
        times = 1 if table.times is None else table.times
        return number >= table.request and (not times or number < table.request + times)


def load_script(path: Path) -> Script:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"The script {path} cannot be read: {error.strerror}.")
    except ValueError as error:
        raise StartupError(f"The script {path} is no TOML: {error}.")
    replies = tables.pop("reply", [])
    if tables or not isinstance(replies, list):
        raise StartupError(f"The script {path} may hold [[reply]] tables only, not {', '.join(tables) or '[reply]'}.")
    return Script([_reply(f"{path}: reply {number}", table) for number, table in enumerate(replies, 1)])


def _reply(where: str, table: Any) -> tuple[ReplyTable, Reply]:
    try:
        reply = convert(table, ReplyTable)
    except ValidationError as error:
        problem, _, field = str(error).partition(" - at `$")
        raise StartupError(f"{where}{field.rstrip('`').replace('.', ', ', 1)}: {problem[:1].lower()}{problem[1:]}.")
    steps: list[Step] = []
    calls = 0
    for number, step in enumerate(reply.steps):
        given = [name for name in _ACTIONS if getattr(step, name) is not None]
        if len(given) != 1:
            said = " and ".join(given) or "none of them"
            raise StartupError(f"{where}, steps[{number}]: one of {', '.join(_ACTIONS)} is needed, not {said}.")
        steps += _steps(step, calls)
        calls += len(step.calls or ()) + (step.call is not None)
    return reply, Reply(steps, _finish(reply, calls), reply.usage)


def _finish(reply: ReplyTable, calls: int) -> Any:
    """A script may say what no engine should: any word passes, and "none" breaks off."""
    if reply.finish is None:
        automatic = any(step.answer for step in reply.steps)
        return UNSET if automatic else "tool_calls" if calls else "stop"
    return None if reply.finish == "none" else cast(Finish, reply.finish)


def _steps(step: StepTable, calls: int) -> list[Step]:
    if step.answer:
        return [Automatic()]
    if step.delay is not None:
        return [Pause(step.delay)]
    if step.silence:
        return [Silence()]
    if step.error is not None:
        return [Fault(_error(step.error))]
    chunks = _chunks(step, calls)
    if step.together:
        return [Burst(tuple(chunks), step.repeat)]
    if len(chunks) == 1:
        return [Burst((chunks[0],), step.repeat)]
    one_round: list[Step] = [Burst((chunk,), 1) for chunk in chunks]
    return one_round * step.repeat


def _error(step: ErrorStep) -> Exception:
    match step.kind:
        case "engine":
            return EngineFailed(step.message)
        case "unavailable":
            return Unavailable(step.message, retry_after=step.retry_after)
        case "context":
            return ContextTooLong(step.message, param="input")
        case "crash":
            return RuntimeError(step.message)


def _chunks(step: StepTable, calls: int) -> list[Chunk]:
    if step.chunk is not None:
        return [step.chunk]
    if step.tokens is not None:
        return [Chunk(tokens=(token,)) for token in step.tokens]
    if step.harmony is not None:
        return [Chunk(tokens=(token,)) for token in harmony().spelled(step.harmony)]
    if step.say is not None:
        return [Chunk(text=text) for text in _words(step.say)]
    if step.think is not None:
        return [Chunk(thought=text) for text in _words(step.think)]
    if step.refuse is not None:
        return [Chunk(refusal=text) for text in _words(step.refuse)]
    wanted = step.calls if step.calls is not None else [step.call] if step.call is not None else []
    return _parallel([_call(call, calls + place) for place, call in enumerate(wanted)])


def _words(words: Words) -> list[str]:
    return [words] if isinstance(words, str) else words


def _call(call: CallStep, index: int) -> list[Chunk]:
    pieces = call.arguments
    if isinstance(pieces, dict):
        pieces = encode(pieces).decode()
    if isinstance(pieces, str):
        size = max(1, -(-len(pieces) // call.chunks))
        pieces = [pieces[at : at + size] for at in range(0, len(pieces), size)]
    named = Chunk(calls=(CallPiece(index=index, name=call.name),))
    return [named, *(Chunk(calls=(CallPiece(index=index, arguments=piece),)) for piece in pieces)]


def _parallel(calls: list[list[Chunk]]) -> list[Chunk]:
    """A piece of each in turn, as long as it has any."""
    longest = max((len(call) for call in calls), default=0)
    return [call[at] for at in range(longest) for call in calls if at < len(call)]
