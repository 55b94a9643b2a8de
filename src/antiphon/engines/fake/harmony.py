"""The fake engine as a gpt-oss model: its prompts and answers are Harmony tokens, with the vocabulary of an optional
package.

It finds the roles and texts by the control tokens of the prompt, continues the header that the prompt ends with, and
emits the automatic answer in messages: reasoning to `analysis`, calls to `commentary`, everything else to `final`.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Final

from msgspec.structs import replace

from antiphon.core import harmony
from antiphon.core.prompt import Chunk, FinishKind, GenerationRequest, Segment, TextPrompt, TokenPrompt
from antiphon.engines.base import min_limit
from antiphon.engines.fake.answer import AnswerChunks, AnswerContent
from antiphon.engines.fake.playback import ReplyRenderer
from antiphon.engines.fake.prompt_reader import ParsedPrompt, PromptTool
from antiphon.engines.fake.schema_instance import smallest_instance
from antiphon.engines.fake.tokens import fake_logprob
from antiphon.errors import InvalidValue

ARCHITECTURE: Final = "gpt_oss"
_TOOL_PATTERN: Final = re.compile(r"^type (\S+) = ", re.MULTILINE)
_MAX_TOKEN: Final = 0x10FFFF
CONTROL_TEXTS: Final = {**harmony.TOKEN_TEXTS, harmony.END_OF_TEXT: "<|endoftext|>"}
CONTROL_TOKENS: Final = {name: token for token, name in CONTROL_TEXTS.items()}
_CONTROL_PATTERN: Final = re.compile(f"({'|'.join(map(re.escape, CONTROL_TOKENS))})")
# A message of a prompt that has one character per token: its header, text and end. The last one may lack a part.
_START, _MESSAGE, _ENDS = chr(harmony.START), chr(harmony.MESSAGE), "".join(map(chr, harmony.END_TOKENS))
_MESSAGE_PATTERN: Final = re.compile(
    f"{_START}([^{_START}{_MESSAGE}{_ENDS}]*){_MESSAGE}?([^{_START}{_ENDS}]*)([{_ENDS}]?)"
)


def encode_with_controls(text: str) -> tuple[int, ...]:
    """Encode text in which control tokens are written by their names."""
    vocab, ids = harmony.load_vocabulary(), list[int]()
    for part in _CONTROL_PATTERN.split(text):
        ids += [CONTROL_TOKENS[part]] if part in CONTROL_TOKENS else vocab.encode(part)
    return tuple(ids)


def encode_segments(segments: Sequence[Segment]) -> tuple[int, ...]:
    """Encode segments; names of control tokens count only in control segments."""
    vocab = harmony.load_vocabulary()
    ids = [encode_with_controls(part.text) if part.control else vocab.encode(part.text) for part in segments]
    return tuple(chain.from_iterable(ids))


def decode_tokens(tokens: Sequence[int]) -> str:
    decoder = FakeTokenDecoder(show_controls=True)
    return "".join([decoder.decode(token) for token in tokens])


class FakeTokenDecoder(harmony.HarmonyTokenDecoder):
    """Decodes tokens to chunks, as engines do."""

    def __init__(self, *, show_controls: bool) -> None:
        """`show_controls`: emit control tokens by their names instead of ""."""
        super().__init__()
        self._show_controls = show_controls

    def decode(self, token: int, engine_text: str = "") -> str:
        if token in CONTROL_TEXTS:
            return CONTROL_TEXTS[token] if self._show_controls else ""
        return super().decode(token, engine_text)

    def to_chunk(self, token: int, alternatives: int | None) -> Chunk:
        chunk = Chunk(text=self.decode(token), tokens=(token,))
        if alternatives is not None:
            chunk.logprobs = (fake_logprob(CONTROL_TEXTS.get(token) or chunk.text, alternatives),)
        return chunk


def parse_harmony_prompt(prompt: TextPrompt | TokenPrompt) -> ParsedPrompt:
    tokens = prompt.tokens if isinstance(prompt, TokenPrompt) else encode_segments(prompt.segments)
    text = "".join([_to_character(token) for token in tokens])  # one character per token, also for prefix comparison
    messages = [(*map(_decode_characters, parts), end) for *parts, end in _MESSAGE_PATTERN.findall(text)]
    turns = [(_parse_role(header), body) for header, body, end in messages if end]
    return ParsedPrompt(
        text=text,
        turns=turns if messages else [("user", decode_tokens(tokens))],
        width=1,
        tools=_declared_tools(turns),
        harmony_opening=_parse_opening(messages[-1][0]) if messages and not messages[-1][2] else "",
    )


def _to_character(token: int) -> str:
    if not 0 <= token <= _MAX_TOKEN:
        raise InvalidValue(f"{token} is no token of this model.", param="input")
    return chr(token)


def _decode_characters(text: str) -> str:
    return decode_tokens([*map(ord, text)])


def _parse_role(header: str) -> str:
    role = header.split(CONTROL_TEXTS[harmony.CHANNEL], 1)[0]
    return "tool" if role.startswith(f"{harmony.FUNCTIONS_NAMESPACE}.") else role


def _declared_tools(turns: Sequence[tuple[str, str]]) -> tuple[PromptTool, ...]:
    """Read the tool names from the developer message; their parameter types are not parsed."""
    instructions = next((text for role, text in turns if role == "developer"), "")
    return tuple([PromptTool(name, {"type": "object"}) for name in _TOOL_PATTERN.findall(instructions)])


def _parse_opening(header: str) -> str:
    """Return the message that the prompt has opened: "" for none, `final`, `functions`, or `functions.f`."""
    _, opened, channel = header.partition(CONTROL_TEXTS[harmony.CHANNEL])
    if not opened:
        return ""
    return channel.partition("to=")[2].split(CONTROL_TEXTS[harmony.CONSTRAIN])[0].strip() or channel.split()[0]


def render_harmony_answer(content: AnswerContent, request: GenerationRequest, prompt: ParsedPrompt) -> str:
    """Render the answer with control tokens by their names, continuing the message that the prompt has opened."""
    opening = prompt.harmony_opening
    if opening == harmony.FUNCTIONS_NAMESPACE and prompt.tools:
        return f".{prompt.tools[0].name} <|constrain|>json<|message|>{{}}<|call|>"
    if opening.startswith(harmony.FUNCTIONS_NAMESPACE):
        return f"{content.text if request.constraint is not None else '{}'}<|call|>"
    if opening:
        return f"{content.text}<|return|>"
    reasoning = (
        f"<|channel|>analysis<|message|>{content.reasoning}<|end|><|start|>assistant" if content.reasoning else ""
    )
    if content.call is not None:
        arguments = smallest_instance(content.call.parameters, "tools")
        return f"{reasoning}{_call_header(content.call.name)}{arguments}<|call|>"
    return f"{reasoning}<|channel|>final<|message|>{content.text}<|return|>"


def split_harmony_answer(
    content: AnswerContent, request: GenerationRequest, prompt: ParsedPrompt, room: int | None
) -> AnswerChunks:
    """Encode the answer, cut it at stop tokens and limits, and split it into chunks of one token."""
    sampling = request.sampling
    limit = min_limit(sampling.max_tokens, room)
    tokens = encode_with_controls(render_harmony_answer(content, request, prompt))
    ends = [at + 1 for at, token in enumerate(tokens) if token in sampling.stop_token_ids]
    tokens = tokens[: min(ends, default=len(tokens))]
    decoder = FakeTokenDecoder(show_controls=not sampling.skip_special_tokens)
    chunks = [decoder.to_chunk(token, sampling.logprobs) for token in tokens[:limit]]
    finish: FinishKind = "stop" if limit is None or len(tokens) <= limit else "length"
    return AnswerChunks(chunks=chunks, finish=finish, stop_reason=tokens[-1] if ends and finish == "stop" else None)


class HarmonyReplyRenderer(ReplyRenderer):
    """Renders scripted chunks as Harmony tokens, opening and closing messages as needed.

    Chunks that already have tokens pass unchanged; a reply must not mix both kinds.
    """

    def __init__(self, request: GenerationRequest) -> None:
        super().__init__("harmony")
        self._token_decoder = FakeTokenDecoder(show_controls=not request.sampling.skip_special_tokens)
        self._alternatives = request.sampling.logprobs
        self._open_header = ""  # header of the open message

    def render(self, chunk: Chunk) -> tuple[list[Chunk], int]:
        if chunk.tokens:
            text = "".join([self._token_decoder.decode(token) for token in chunk.tokens])
            return [replace(chunk, text=chunk.text or text)], len(chunk.tokens)
        rendered = self._render_text(chunk)
        chunks = (
            [self._token_decoder.to_chunk(token, self._alternatives) for token in encode_with_controls(rendered)]
            if rendered
            else [chunk]
        )
        return chunks, len(chunks)

    def end_tokens(self, finish: FinishKind | None) -> tuple[int, ...]:
        if not self._open_header or finish not in ("stop", "tool_calls"):
            return ()
        return (harmony.CALL if " to=" in self._open_header else harmony.RETURN,)

    def _render_text(self, chunk: Chunk) -> str:
        rendered = ""
        if chunk.reasoning:
            rendered += self._enter_message("<|channel|>analysis<|message|>") + chunk.reasoning
        if answer := chunk.text + chunk.refusal:
            rendered += self._enter_message("<|channel|>final<|message|>") + answer
        for call in chunk.calls:
            rendered += (self._enter_message(_call_header(call.name)) if call.name else "") + call.arguments
        return rendered

    def _enter_message(self, header: str) -> str:
        if header == self._open_header and " to=" not in header:
            return ""
        end = harmony.CALL if " to=" in self._open_header else harmony.END
        closing = f"{CONTROL_TEXTS[end]}<|start|>assistant" if self._open_header else ""
        self._open_header = header
        return closing + header


def _call_header(name: str) -> str:
    return f"<|channel|>commentary to={harmony.FUNCTIONS_NAMESPACE}.{name} <|constrain|>json<|message|>"
