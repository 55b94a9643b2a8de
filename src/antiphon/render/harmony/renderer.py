"""Chat messages → Harmony tokens for gpt-oss. This module walks over messages; render/messages.py walks over items.

    system       identity, current date, reasoning effort, built-in tools, channels
    developer    instructions, functions, format of the answer
    …            the conversation; reasoning only since the last answer; calls, each followed by its output
    assistant    header at which the model takes over

Control tokens are inserted by number, all other strings are encoded as text. So neither text from users, tools or files
nor a tool's name or description can become a control token.

`openai_harmony` renders the same tokens (tests/golden/harmony compares them) and is used for the vocabulary only: its
renderer encodes a text in one call, which takes 1.1 s for 50,000 characters without a space, grows with the square of
their number and holds the GIL. `HarmonyVocabulary.encode` splits such texts.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, takewhile
from typing import Final, TypeVar

from msgspec import UNSET
from msgspec.json import decode, encode

from antiphon.core import harmony
from antiphon.core.prompt import ChatPrompt, Json, Segment, TokenPrompt
from antiphon.core.truncated_json import parse_object
from antiphon.protocol.types.response import JsonSchemaFormat
from antiphon.render.harmony.system import FINAL, PYTHON, AnswerFormat, HarmonySettings
from antiphon.render.harmony.typescript import render_namespace

IDENTITY: Final = "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06"
CHANNELS: Final = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
TO_COMMENTARY: Final = f"Calls to these tools must go to the commentary channel: '{harmony.FUNCTIONS_NAMESPACE}'."
ANY_JSON: Final = "The final answer is one JSON object and nothing else."
CACHE_SIZE: Final = 64  # prompt heads
MAX_CACHED_LENGTH: Final = 128 * 1024  # characters of one prompt head
T = TypeVar("T")


def render_harmony(chat: ChatPrompt, settings: HarmonySettings) -> TokenPrompt:
    """Render a chat as the token prompt of a gpt-oss model."""
    instructions = [*takewhile(_is_instruction, chat.messages)]
    functions = {tool["function"]["name"] for tool in chat.tools}
    other_recipients = {name: recipient for name, recipient in chat.recipients.items() if name not in functions}
    writer = _HarmonyWriter(
        _head_tokens(
            _system_text(settings, bool(chat.tools)), _developer_text(instructions, chat.tools, settings.answer_format)
        ),
        other_recipients,
    )
    writer.write_messages(chat.messages[len(instructions) :], settings.all_turns)
    writer.open_answer(settings)
    return TokenPrompt(tuple(writer.tokens))


def spell_tokens(tokens: Sequence[int]) -> list[Segment]:
    """Return rendered tokens as text, with the control tokens by their names."""
    decoder = harmony.HarmonyTokenDecoder()
    return [
        Segment("".join([harmony.TOKEN_TEXTS.get(token) or decoder.decode(token) for token in group]), is_control)
        for is_control, group in groupby(tokens, key=lambda token: token >= harmony.FIRST_CONTROL)
    ]


def _is_instruction(message: Json) -> bool:
    return message["role"] in ("system", "developer")


def _cache_short(build: Callable[..., T]) -> Callable[..., T]:
    """Cache what is built from short texts: many requests share instructions and tools."""
    cached = lru_cache(maxsize=CACHE_SIZE)(build)
    return lambda *texts: (cached if sum(map(len, texts)) <= MAX_CACHED_LENGTH else build)(*texts)


@_cache_short
def _head_tokens(system: str, developer: str) -> tuple[int, ...]:
    writer = _HarmonyWriter(())
    writer.write_message("system", system)
    if developer:
        writer.write_message("developer", developer)
    return tuple(writer.tokens)


def _system_text(settings: HarmonySettings, has_functions: bool) -> str:
    intro = f"{IDENTITY}\nCurrent date: {settings.today}"
    harmony_vocabulary = harmony.load_vocabulary()
    builtins = [harmony_vocabulary.load_builtin(name) for name in sorted(settings.builtins)]
    tools = [render_namespace(builtin.name, builtin.description, builtin.tools) for builtin in builtins]
    channels = f"{CHANNELS}\n{TO_COMMENTARY}" if has_functions else CHANNELS
    return "\n\n".join([intro, f"Reasoning: {settings.effort}", *(["# Tools", *tools] if tools else []), channels])


def _developer_text(messages: Sequence[Json], tools: Sequence[Json], answer_format: AnswerFormat | None) -> str:
    instructions = "\n\n".join([_join_text(message["content"]) for message in messages])
    sections = ["# Instructions", instructions] if instructions else []
    if tools:
        sections += ["# Tools", _functions_text(encode(tools))]
    if answer_format is not None:
        sections += ["# Response Formats", _format_text(answer_format)]
    return "\n\n".join(sections)


@_cache_short
def _functions_text(tools: bytes) -> str:
    """Render the encoded schemas of functions as TypeScript, which takes milliseconds."""
    return render_namespace(harmony.FUNCTIONS_NAMESPACE, "", decode(tools))


def _format_text(answer_format: AnswerFormat) -> str:
    if not isinstance(answer_format, JsonSchemaFormat):
        return f"## json\n\n// {ANY_JSON}\n" + '{"type":"object"}'
    lines = [] if answer_format.description is UNSET else answer_format.description.splitlines()
    description = "".join([f"// {line}\n" for line in lines])
    schema = json.dumps(answer_format.schema, ensure_ascii=False, separators=(",", ":"))
    return f"## {answer_format.name}\n\n{description}{schema}"


class _HarmonyWriter:
    """Appends Harmony messages to a list of tokens."""

    def __init__(self, head: Sequence[int], other_recipients: Mapping[str, str] | None = None) -> None:
        """`other_recipients`: names of calls → recipients that are no functions, such as built-in tools."""
        self.tokens = [*head]
        self._other_recipients = other_recipients or {}
        self._vocabulary = harmony.load_vocabulary()

    def write_messages(self, messages: Sequence[Json], all_turns: bool) -> None:
        """Write the conversation, without the reasoning before the last answer: the model was trained without it."""
        last_answer = max([n for n, message in enumerate(messages) if _is_answer(message)], default=-1)
        outputs = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
        for number, message in enumerate(messages):
            match message["role"]:
                case "assistant":
                    self._write_assistant(message, outputs, with_reasoning=all_turns or number > last_answer)
                case "tool":
                    pass  # written with its call
                case "user":
                    self.write_message("user", _join_text(message["content"]))
                case _:
                    self.write_message("developer", f"# Instructions\n\n{_join_text(message['content'])}")

    def write_message(self, role: str, text: str, channel: harmony.Channel | None = None, recipient: str = "") -> None:
        self._write_start(role, channel, recipient)
        self._write_content(text, harmony.END)

    def open_answer(self, settings: HarmonySettings) -> None:
        """Write the header of the answer as far as it is determined."""
        if not (opening := settings.opening):
            self._write_header("assistant", None, "")
        elif opening == FINAL:
            self._write_start("assistant", "final", "", is_json=settings.answer_format is not None)
        elif opening == harmony.FUNCTIONS_NAMESPACE:
            self._write_header("assistant", "commentary", opening)
        else:
            self._write_start("assistant", "commentary", opening, is_json=True)

    def _write_assistant(self, message: Json, outputs: dict[str, Json], with_reasoning: bool) -> None:
        reasoning = message.get("reasoning_content")
        if reasoning and with_reasoning:
            self.write_message("assistant", reasoning, "analysis")
        if message["content"]:
            self.write_message(
                "assistant", _join_text(message["content"]), "final" if _is_answer(message) else "commentary"
            )
        for call in message.get("tool_calls", ()):
            recipient, channel = self._resolve_recipient(call["function"]["name"])
            self._write_start("assistant", channel, recipient, is_json=channel == "commentary")
            arguments = call["function"]["arguments"]
            self._write_content(_unwrap_code(arguments) if recipient == PYTHON else arguments, harmony.CALL)
            if call["id"] in outputs:
                self.write_message(
                    recipient, _join_text(outputs[call["id"]]["content"]), channel, recipient="assistant"
                )

    def _resolve_recipient(self, name: str) -> tuple[str, harmony.Channel]:
        """Return recipient and channel of a call; recipients other than functions use the analysis channel."""
        return (
            (self._other_recipients[name], "analysis")
            if name in self._other_recipients
            else (f"{harmony.FUNCTIONS_NAMESPACE}.{name}", "commentary")
        )

    def _write_start(self, role: str, channel: harmony.Channel | None, recipient: str, is_json: bool = False) -> None:
        self._write_header(role, channel, recipient)
        if is_json:
            self.tokens += (
                *self._vocabulary.encode_label(" "),
                harmony.CONSTRAIN,
                *self._vocabulary.encode_label("json"),
            )
        self.tokens.append(harmony.MESSAGE)

    def _write_header(self, role: str, channel: harmony.Channel | None, recipient: str) -> None:
        label = self._vocabulary.encode_label
        self.tokens += (harmony.START, *label(role))
        if channel is not None:
            self.tokens += (harmony.CHANNEL, *label(channel))
        if recipient:
            self.tokens += label(f" to={recipient}")

    def _write_content(self, text: str, end: int) -> None:
        self.tokens += self._vocabulary.encode(text)
        self.tokens.append(end)


def _unwrap_code(arguments: str) -> str:
    """Return the code of a call: the model was trained to write it as it is."""
    code = (parse_object(arguments) or {}).get("code")
    return code if isinstance(code, str) else arguments


def _is_answer(message: Json) -> bool:
    """Return whether a message is a final answer: text before calls and text of phase "commentary" is not."""
    has_text = message["role"] == "assistant" and message["content"] and not message.get("tool_calls")
    return bool(has_text) and message.get("phase") != "commentary"


def _join_text(content: str | list[Json] | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join([part["text"] for part in content or () if part["type"] == "text"])
