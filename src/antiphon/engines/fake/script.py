"""Script files of the fake engine: TOML with one [[reply]] table per reply; `docs/fake-engine.md` documents the format.

The first reply whose `request` and `when` match is played. An invalid file is reported at start-up in one sentence that
names the file, the reply and the field.
"""

import asyncio
import tomllib
from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from msgspec import UNSET, Meta, Struct, ValidationError, convert
from msgspec.json import encode
from msgspec.structs import replace

from antiphon.core.prompt import CallPiece, Chunk, FinishKind, GenerationRequest, Json, TokenCounts
from antiphon.engines.fake.harmony import encode_with_controls
from antiphon.engines.fake.playback import Gate, ReplyStep, ScriptedReply, make_fault
from antiphon.engines.fake.prompt_reader import ParsedPrompt
from antiphon.errors import ContextTooLong, EngineFailed, StartupError, Unavailable

TextPieces = str | list[str]
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


class PieceTable(CallPiece, frozen=True, forbid_unknown_fields=True): ...


class ChunkTable(Chunk, kw_only=True, gc=False, forbid_unknown_fields=True, rename={"reasoning": "thought"}):
    """A chunk as scripts write it; the key of its reasoning is `thought`, as docs/fake-engine.md documents it."""

    calls: tuple[PieceTable, ...] = ()


class UsageTable(TokenCounts, frozen=True, forbid_unknown_fields=True): ...


class StepTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one action, and for chunks how often they are emitted and whether they arrive together."""

    say: TextPieces | None = None
    think: TextPieces | None = None
    refuse: TextPieces | None = None
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


class ReplyCondition(Struct, frozen=True, forbid_unknown_fields=True):
    contains: str | None = None  # in the last user text
    model: str | None = None
    tool: str | None = None  # name of a tool that may be called
    output: str | None = None  # in a tool output at the end of the prompt
    prompt: str | None = None  # anywhere in the prompt

    def matches(self, request: GenerationRequest, prompt: ParsedPrompt) -> bool:
        return (
            (self.contains is None or self.contains in prompt.user_text)
            and (self.model is None or self.model == request.model)
            and (self.tool is None or any(self.tool == tool.name for tool in prompt.tools))
            and (self.output is None or any(self.output in output for output in prompt.tool_outputs))
            and (self.prompt is None or self.prompt in prompt.text)
        )


class ReplyTable(Struct, frozen=True, forbid_unknown_fields=True):
    request: Positive | None = None
    when: ReplyCondition = ReplyCondition()
    times: Annotated[int, Meta(ge=0)] | None = None
    steps: list[StepTable] = []
    finish: str | None = None
    usage: UsageTable | None = None


class Script:
    """The replies of a script file, and how often each was played."""

    def __init__(self, replies: Sequence[tuple[ReplyTable, ScriptedReply]]) -> None:
        self._replies = replies
        self._play_counts = [0] * len(replies)

    def match(self, request_number: int, request: GenerationRequest, prompt: ParsedPrompt) -> ScriptedReply | None:
        for index, (table, reply) in enumerate(self._replies):
            if self._is_due(index, table, request_number) and table.when.matches(request, prompt):
                self._play_counts[index] += 1
                return reply
        return None

    def _is_due(self, index: int, table: ReplyTable, request_number: int) -> bool:
        """Check `request` and `times`, which counts requests from `request` on, or else playbacks; 0: no limit."""
        if table.request is None:
            return not table.times or self._play_counts[index] < table.times
        times = 1 if table.times is None else table.times
        return request_number >= table.request and (not times or request_number < table.request + times)


def load_script(path: Path) -> Script:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"The script {path} cannot be read: {error.strerror}.")
    except ValueError as error:
        raise StartupError(f"The script {path} is not valid TOML: {error}.")
    replies = tables.pop("reply", [])
    if tables or not isinstance(replies, list):
        raise StartupError(
            f"The script {path} may contain [[reply]] tables only, not {', '.join(tables) or '[reply]'}."
        )
    return Script([_build_reply(f"{path}: reply {number}", table) for number, table in enumerate(replies, 1)])


def _build_reply(location: str, table: Any) -> tuple[ReplyTable, ScriptedReply]:
    try:
        reply = convert(table, ReplyTable)
    except ValidationError as error:
        problem, _, field = str(error).partition(" - at `$")
        raise StartupError(f"{location}{field.rstrip('`').replace('.', ', ', 1)}: {problem[:1].lower()}{problem[1:]}.")
    steps: list[ReplyStep] = []
    calls = 0
    for number, step in enumerate(reply.steps):
        actions = [name for name in _ACTIONS if getattr(step, name) is not None]
        if len(actions) != 1:
            found = " and ".join(actions) or "none of them"
            raise StartupError(f"{location}, steps[{number}]: one of {', '.join(_ACTIONS)} is needed, not {found}.")
        steps += _build_steps(step, calls)
        calls += len(step.calls or ()) + (step.call is not None)
    return reply, ScriptedReply(steps, _resolve_finish(reply, calls), reply.usage)


def _resolve_finish(reply: ReplyTable, calls: int) -> Any:
    """Return the finish reason. Any string passes, also one that no engine sends; "none" breaks the stream off."""
    if reply.finish is None:
        automatic = any(step.answer for step in reply.steps)
        return UNSET if automatic else "tool_calls" if calls else "stop"
    return None if reply.finish == "none" else cast(FinishKind, reply.finish)


def _build_steps(step: StepTable, calls: int) -> list[ReplyStep]:
    if step.answer:
        return [None]
    if step.delay is not None:
        return [partial(asyncio.sleep, step.delay)]
    if step.silence:
        return [Gate().wait]  # nothing opens it: the request has to be cancelled
    if step.error is not None:
        return [make_fault(_build_error(step.error))]
    chunks = _build_chunks(step, calls)
    bursts: list[ReplyStep] = [tuple(chunks)] if step.together else [(chunk,) for chunk in chunks]
    return bursts * step.repeat


def _build_error(step: ErrorStep) -> Exception:
    if step.kind == "unavailable":
        return Unavailable(step.message, retry_after=step.retry_after)
    if step.kind == "context":
        return ContextTooLong(step.message, param="input")
    return EngineFailed(step.message) if step.kind == "engine" else RuntimeError(step.message)


def _build_chunks(step: StepTable, calls: int) -> list[Chunk]:
    if step.chunk is not None:
        return [step.chunk]
    tokens = step.tokens if step.harmony is None else encode_with_controls(step.harmony)
    if tokens is not None:
        return [Chunk(tokens=(token,)) for token in tokens]
    for field, texts in (("text", step.say), ("reasoning", step.think), ("refusal", step.refuse)):
        if texts is not None:
            return [replace(Chunk(), **{field: text}) for text in ([texts] if isinstance(texts, str) else texts)]
    new_calls = step.calls or ([step.call] if step.call is not None else [])
    parallel = [_call_chunks(call, calls + offset) for offset, call in enumerate(new_calls)]
    return [chunk for turn in zip_longest(*parallel) for chunk in turn if chunk is not None]


def _call_chunks(call: CallStep, index: int) -> list[Chunk]:
    pieces = call.arguments
    if isinstance(pieces, dict):
        pieces = encode(pieces).decode()
    if isinstance(pieces, str):
        size = max(1, -(-len(pieces) // call.chunks))
        pieces = [pieces[at : at + size] for at in range(0, len(pieces), size)]
    name_chunk = Chunk(calls=(CallPiece(index=index, name=call.name),))
    return [name_chunk, *(Chunk(calls=(CallPiece(index=index, arguments=piece),)) for piece in pieces)]
