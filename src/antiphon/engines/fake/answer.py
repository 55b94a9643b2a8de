"""What the fake engine answers when no script tells it: said in full, then cut into chunks.

A forced call comes before a required format, a format before a tool of its own choice, and without any of
them it repeats what it heard. Nothing here is random, so whatever only shapes chance changes nothing.

The input of a custom tool with a Lark grammar: one of its shortest sentences, if somebody can tell what those are.

A model reads of the grammar in the description of the tool's input; so does this.
"""

from collections import deque
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from msgspec import Struct, json
from msgspec.structs import replace

from antiphon.core.prompt import CallPiece, Chunk, Finish, Grammar, Json, JsonSchema, Sampling, Work
from antiphon.engines.fake.prompt_reader import Reading, Tool
from antiphon.engines.fake.schema_instance import smallest
from antiphon.engines.fake.tokens import END, ids_of, load, logprob, pieces, tokens_in
from antiphon.protocol.schemas.grammars import knows_lark

TOLD: Final = "It must match this Lark grammar:\n"
_BYTES: Final = b"\n a0" + bytes(byte for byte in range(33, 127) if byte not in b"a0")  # in which order they are tried
_WAYS: Final = 6  # of going on, at each place
_PLACES: Final = 2000  # looked at before giving up


def sentence(parameters: Json) -> str | None:
    """None: there is no grammar, or no sentence of it was found."""
    about = parameters.get("properties", {}).get("input", {})
    _, told, grammar = str(about.get("description", "") if isinstance(about, dict) else "").partition(TOLD)
    return _shortest(grammar) if told and knows_lark() else None


@lru_cache(maxsize=64)
def _shortest(grammar: str) -> str | None:
    start = import_module("antiphon.protocol.schemas.lark").compiled(grammar)
    waiting = deque([(start.deep_copy(), b"")])
    for _ in range(_PLACES):
        if not waiting or start.is_error():
            return None
        matcher, said = waiting.popleft()
        forced = matcher.compute_ff_bytes()
        matcher.consume_tokens(list(forced))
        said += forced
        if matcher.is_accepting():
            return str(said.decode("utf-8", "replace"))
        waiting += _onwards(matcher, said)
    return None


def _onwards(matcher: Any, said: bytes) -> list[tuple[Any, bytes]]:
    found: list[tuple[Any, bytes]] = []
    for byte in _BYTES:
        if len(found) < _WAYS and matcher.validate_tokens([byte]) == 1:
            further = matcher.deep_copy()
            further.consume_tokens([byte])
            found.append((further, said + bytes([byte])))
    return found


_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
_THOUGHTS = (
    "Let me think.",
    "I have been told something.",
    "I could repeat it.",
    "Would that be an answer?",
    "It would be an honest one.",
    "Then that is what I shall say.",
)
_PLENTY = 4096  # tokens, when the end is to be ignored and nobody named another


class Answer(Struct, frozen=True, kw_only=True):
    thought: str = ""
    text: str = ""
    call: Tool | None = None
    free: bool = False  # no format binds the text
    load: bool = False  # only its length counts


class Spoken(Struct, frozen=True, kw_only=True):
    """An answer in chunks of one token each."""

    chunks: list[Chunk]
    finish: Finish
    reasoning: int = 0
    stop_reason: int | str | None = None  # the client's own word for the end that was found


def answer(work: Work, reading: Reading, tokens: int | None) -> Answer:
    thought = _thought(work.effort, reading)
    if reading.must_call:
        return Answer(thought=thought, call=reading.tools[0])
    if isinstance(work.constraint, JsonSchema):
        return Answer(thought=thought, text=smallest(work.constraint.schema, "text.format.schema"))
    if isinstance(work.constraint, Grammar):
        return Answer(thought=thought, text=_sentence(work.constraint))
    if work.constraint is not None:
        return Answer(thought=thought, text="{}")
    if reading.tools and not reading.outputs:
        return Answer(thought=thought, call=reading.tools[0])
    if tokens is not None:
        return Answer(thought=thought, text=load(tokens)[: tokens * reading.width], free=True, load=True)
    return Answer(thought=thought, text=_words(reading), free=True)


def _sentence(grammar: Grammar) -> str:
    """The shortest that a regular expression matches; it does not honour other grammars."""
    pattern = f"^(?:{grammar.definition})$"
    return str(json.decode(smallest({"type": "string", "pattern": pattern}, "text.format")))


def _words(reading: Reading) -> str:
    if reading.outputs:
        return f"The tool said: {' '.join(reading.outputs)}"
    return f"You said: {reading.said}"


def _thought(effort: str | None, reading: Reading) -> str:
    """More of it with more effort."""
    wanted = effort not in (None, "none") if reading.thinks is None else reading.thinks
    if not wanted:
        return ""
    sentences = _EFFORTS.index(effort) + 1 if effort in _EFFORTS else 3
    return " ".join(_THOUGHTS[:sentences])


def speak(said: Answer, work: Work, reading: Reading, *, raw: bool, room: int | None) -> Spoken:
    """`raw` is the text and token level, where a form binds all that is said; `room` is what the context has left."""
    sampling = work.sampling
    if raw and work.constraint is not None:
        said = replace(said, thought="")
    limit = _least(sampling.max_tokens, room)
    enough = _long_enough(said, sampling, reading.width, _PLENTY if limit is None else limit)
    text, reason = _stopped(enough, sampling, reading.width)
    if sampling.ignore_eos and said.free and reason is None:
        text = _endless(text, reading.width, _PLENTY if limit is None else limit)
    chunks = _raw(said, text, sampling, reading.width) if raw else _chat(said, text, sampling)
    thoughts = tokens_in(len(_in_tags(said.thought)) if raw else len(said.thought), reading.width)
    if limit is not None and len(chunks) > limit:
        return Spoken(chunks=chunks[:limit], finish="length", reasoning=min(thoughts, limit))
    finish: Finish = "stop" if said.call is None else "tool_calls"
    return Spoken(chunks=chunks, finish=finish, reasoning=thoughts, stop_reason=reason)


def _least(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _long_enough(said: Answer, sampling: Sampling, width: int, most: int) -> str:
    """With as many more words as `min_tokens` wants, and at most so many tokens."""
    missing = min(sampling.min_tokens or 0, most) - tokens_in(len(said.text), width)
    return said.text + load(missing)[: missing * width] if said.free and missing > 0 else said.text


def _stopped(text: str, sampling: Sampling, width: int) -> tuple[str, int | str | None]:
    """Up to the stop sequence or token that ends first, and which that is; of two that end together the longer one."""
    if not (sampling.stop or sampling.stop_token_ids):
        return text, None
    least = (sampling.min_tokens or 0) * width
    ends = [
        (at + len(stop), -len(stop), stop) for stop in sampling.stop if stop and (at := text.find(stop, least)) >= 0
    ]
    ends += [(at + 1, -1, text[at]) for at in [_stop_token(text, sampling, least)] if at >= 0]
    if not ends:
        return text, None
    end, length, stop = min(ends)
    reason: int | str = stop if stop in sampling.stop else ids_of(stop)[0]
    return text[:end] if sampling.include_stop_str_in_output else text[: end + length], reason


def _stop_token(text: str, sampling: Sampling, least: int) -> int:
    """Where the first of those tokens is; -1: nowhere. A token with a number is a character."""
    stops = {token for token in sampling.stop_token_ids if token >= 0}
    return next((at for at in range(least, len(text)) if ids_of(text[at])[0] in stops), -1) if stops else -1


def _endless(text: str, width: int, limit: int) -> str:
    return text + load(max(0, limit + 1 - len(text) // width))


def _chat(said: Answer, text: str, sampling: Sampling) -> list[Chunk]:
    chunks = [Chunk(thought=piece) for piece in pieces(said.thought)] if said.thought else []
    if said.call is not None:
        chunks.append(Chunk(calls=(CallPiece(index=0, name=said.call.name),)))
        arguments = pieces(_arguments(said.call.parameters))
        chunks += [Chunk(calls=(CallPiece(index=0, arguments=piece),)) for piece in arguments]
        return chunks
    if said.load and text == said.text and not chunks and sampling.logprobs is None:
        return _made_once(text)
    if sampling.logprobs is None:
        return chunks + [Chunk(text=piece) for piece in pieces(text)]
    return chunks + [Chunk(text=piece, logprobs=(logprob(piece, sampling.logprobs),)) for piece in pieces(text)]


@lru_cache(maxsize=8)
def _made_once(text: str) -> list[Chunk]:
    """Load is to cost the server, not us: every request gets the same chunks."""
    return [Chunk(text=piece) for piece in pieces(text)]


def _raw(said: Answer, text: str, sampling: Sampling, width: int) -> list[Chunk]:
    ending = "" if sampling.skip_special_tokens else END
    chunks = [Chunk(text=piece) for piece in pieces(_in_tags(said.thought) + text + ending, width)]
    for chunk in chunks:
        if width == 1:
            chunk.tokens = tuple(ids_of(chunk.text))
        if sampling.logprobs is not None:
            chunk.logprobs = (logprob(chunk.text, sampling.logprobs),)
    return chunks


def _in_tags(thought: str) -> str:
    return f"<think>{thought}</think>" if thought else ""


def _arguments(parameters: Json) -> str:
    """As small as can be."""
    said = sentence(parameters)
    return smallest(parameters, "tools") if said is None else json.encode({"input": said}).decode()
