"""The fake engine as a model of the gpt-oss family: its prompts and answers are tokens of Harmony.

It finds who said what by the control tokens of the prompt, takes over within the header that the prompt ends with, and
says what it would have said anyway, in messages: thoughts to analysis, calls to commentary, all else to final.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.harmony import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    END_OF_TEXT,
    ENDS,
    FUNCTIONS,
    MESSAGE,
    NAMES,
    RETURN,
    START,
    vocabulary,
)
from antiphon.core.prompt import Chunk, Finish, Segment, TextPrompt, TokenPrompt, Work
from antiphon.engines.fake.answer import Answer, Spoken
from antiphon.engines.fake.prompt_reader import Reading, Tool, last_said, outputs
from antiphon.engines.fake.schema_instance import smallest
from antiphon.engines.fake.tokens import logprob
from antiphon.errors import InvalidValue

_NAMES: Final = {**NAMES, END_OF_TEXT: "<|endoftext|>"}
CONTROLS: Final = {name: token for token, name in _NAMES.items()}
_SPLIT: Final = re.compile(f"({'|'.join(map(re.escape, CONTROLS))})")
_TOOL: Final = re.compile(r"^type (\S+) = ", re.MULTILINE)
_HIGHEST: Final = 0x10FFFF

_Decoder = getincrementaldecoder("utf-8")


def spelled(text: str) -> tuple[int, ...]:
    """The tokens of text in which control tokens stand by their names."""
    known, ids = vocabulary(), list[int]()
    for part in _SPLIT.split(text):
        ids += [CONTROLS[part]] if part in CONTROLS else known.tokens(part)
    return tuple(ids)


def encode(segments: Sequence[Segment]) -> tuple[int, ...]:
    """Only in control segments is a name a control token."""
    known = vocabulary()
    return tuple([id for one in segments for id in (spelled(one.text) if one.control else known.tokens(one.text))])


def decode(tokens: Sequence[int]) -> str:
    voice = Spelling(shows=True)
    return "".join([voice.text(token) for token in tokens])


class Said(Struct):
    """A message of the prompt; the last one may have no end, or no more than a beginning of its header."""

    header: str
    text: str = ""
    begun: bool = False  # its text
    ended: bool = False

    @property
    def role(self) -> str:
        role = self.header.split(_NAMES[CHANNEL], 1)[0]
        return "tool" if role.startswith(f"{FUNCTIONS}.") else role


def read_harmony(prompt: TextPrompt | TokenPrompt) -> Reading:
    tokens = prompt.tokens if isinstance(prompt, TokenPrompt) else encode(prompt.segments)
    said = [*_messages(tokens)]
    turns = [(one.role, one.text) for one in said if one.ended]
    opening = said[-1] if said and not said[-1].ended else None
    return Reading(
        text="".join([_character(token) for token in tokens]),  # one for each token, so that they can be compared
        tokens=len(tokens),
        width=1,
        said=last_said(turns) if said else decode(tokens),
        outputs=outputs(turns),
        tools=_tools(turns),
        opening=_opening(opening),
        templated=bool(said),
    )


def _character(token: int) -> str:
    if not 0 <= token <= _HIGHEST:
        raise InvalidValue(f"{token} is no token of this model.", param="input")
    return chr(token)


def _messages(tokens: Sequence[int]) -> Iterator[Said]:
    now: Said | None = None
    spelling = Spelling(shows=True)
    for token in tokens:
        if token == START:
            now = Said("")
        elif now is None:
            continue
        elif token == MESSAGE:
            now.begun = True
        elif token in ENDS:
            now.ended = True
            yield now
            now = None
        elif now.begun:
            now.text += spelling.text(token)
        else:
            now.header += spelling.text(token)
    if now is not None:
        yield now


def _tools(turns: Sequence[tuple[str, str]]) -> tuple[Tool, ...]:
    """Those of the developer message, by their names: what they take is not told in a form that it reads."""
    told = next((text for role, text in turns if role == "developer"), "")
    return tuple([Tool(name, {"type": "object"}) for name in _TOOL.findall(told)])


def _opening(last: Said | None) -> str:
    """What the prompt has begun to say: "" nothing, `final`, `functions`, or `functions.f`."""
    if last is None or _NAMES[CHANNEL] not in last.header:
        return ""
    channel = last.header.split(_NAMES[CHANNEL], 1)[1]
    return channel.partition("to=")[2].split(_NAMES[CONSTRAIN])[0].strip() or channel.split()[0]


def harmony_answer(said: Answer, work: Work, reading: Reading) -> str:
    """Spelled. What the prompt has begun is gone on with."""
    opening = reading.opening
    if opening == FUNCTIONS and reading.tools:
        return f".{reading.tools[0].name} <|constrain|>json<|message|>{{}}<|call|>"
    if opening.startswith(FUNCTIONS):
        return f"{said.text if work.constraint is not None else '{}'}<|call|>"
    if opening:
        return f"{said.text}<|return|>"
    thought = f"<|channel|>analysis<|message|>{said.thought}<|end|><|start|>assistant" if said.thought else ""
    if said.call is not None:
        arguments = smallest(said.call.parameters, "tools")
        return f"{thought}{_call_header(said.call.name)}{arguments}<|call|>"
    return f"{thought}<|channel|>final<|message|>{said.text}<|return|>"


def speak_harmony(said: Answer, work: Work, reading: Reading, room: int | None) -> Spoken:
    sampling = work.sampling
    limits = [limit for limit in (sampling.max_tokens, room) if limit is not None]
    tokens = spelled(harmony_answer(said, work, reading))
    ends = [at + 1 for at, token in enumerate(tokens) if token in sampling.stop_token_ids]
    tokens, limit = tokens[: min(ends, default=len(tokens))], min(limits, default=len(tokens))
    spelling = Spelling(shows=not sampling.skip_special_tokens)
    chunks = [spelling.chunk(token, sampling.logprobs) for token in tokens[:limit]]
    finish: Finish = "length" if len(tokens) > limit else "stop"
    return Spoken(chunks=chunks, finish=finish, stop_reason=tokens[-1] if ends and finish == "stop" else None)


class Spelling:
    """Token after token → text, as engines tell it: half a character comes with its other half."""

    def __init__(self, *, shows: bool) -> None:
        """`shows`: control tokens, by their names."""
        self._shows = shows
        self._known = vocabulary()
        self._decoder = _Decoder("replace")

    def text(self, token: int) -> str:
        if token in _NAMES:
            return _NAMES[token] if self._shows else ""
        word = self._known.word(token)
        return self._decoder.decode(word.encode() if isinstance(word, str) else word)

    def chunk(self, token: int, alternatives: int | None) -> Chunk:
        chunk = Chunk(text=self.text(token), tokens=(token,))
        if alternatives is not None:
            chunk.logprobs = (logprob(_NAMES.get(token) or chunk.text, alternatives),)
        return chunk


class HarmonyVoice:
    """What a test or a script says → chunks of tokens, in messages that are opened and closed as they have to be.

    Chunks that are tokens already are played as they are: then all of the reply is to be.
    """

    raw = True

    def __init__(self, work: Work) -> None:
        self._spelling = Spelling(shows=not work.sampling.skip_special_tokens)
        self._alternatives = work.sampling.logprobs
        self._open = ""  # the header of the message that is open

    def said(self, chunk: Chunk) -> tuple[list[Chunk], int]:
        if chunk.tokens:
            text = "".join([self._spelling.text(token) for token in chunk.tokens])
            return [replace(chunk, text=chunk.text or text)], len(chunk.tokens)
        words = self._words(chunk)
        chunks = [self._spelling.chunk(token, self._alternatives) for token in spelled(words)] if words else [chunk]
        return chunks, len(chunks)

    def end(self, finish: Finish | None) -> tuple[int, ...]:
        if not self._open or finish not in ("stop", "tool_calls"):
            return ()
        return (CALL if " to=" in self._open else RETURN,)

    def _words(self, chunk: Chunk) -> str:
        words = ""
        if chunk.thought:
            words += self._into("<|channel|>analysis<|message|>") + chunk.thought
        if said := chunk.text + chunk.refusal:
            words += self._into("<|channel|>final<|message|>") + said
        for call in chunk.calls:
            words += (self._into(_call_header(call.name)) if call.name else "") + call.arguments
        return words

    def _into(self, header: str) -> str:
        if header == self._open and " to=" not in header:
            return ""
        end = CALL if " to=" in self._open else END
        before = f"{_NAMES[end]}<|start|>assistant" if self._open else ""
        self._open = header
        return before + header


class Harmony:
    """All of it, for speech.py."""

    spelled = staticmethod(spelled)
    encode = staticmethod(encode)
    decode = staticmethod(decode)
    read = staticmethod(read_harmony)
    speak = staticmethod(speak_harmony)
    voice = HarmonyVoice


def _call_header(name: str) -> str:
    return f"<|channel|>commentary to={FUNCTIONS}.{name} <|constrain|>json<|message|>"
