"""Chat messages → Harmony, the tokens of gpt-oss. What is walked over here are messages: messages.py walks the items.

    system       who it is, today's date, how hard to think, the built-in tools, the channels
    developer    instructions, functions, the form of the answer
    …            what was said; thoughts only since the last answer; calls, each with its output behind it
    assistant    where the model takes over

Control tokens are put in by number, all else is encoded as text. So nothing that users, tools or files wrote, nor a
tool's name or description, ever becomes a control token.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Final

from msgspec import UNSET
from msgspec.json import decode, encode

from antiphon.core.harmony import CALL, CHANNEL, CONSTRAIN, END, FUNCTIONS, MESSAGE, START, Channel, vocabulary
from antiphon.core.prompt import ChatPrompt, Json, TokenPrompt
from antiphon.protocol.types.response import JsonSchemaFormat
from antiphon.render.harmony.system import FINAL, Form, Scene
from antiphon.render.harmony.typescript import namespace

CHANNELS: Final = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
TO_COMMENTARY: Final = f"Calls to these tools must go to the commentary channel: '{FUNCTIONS}'."
ANY_JSON: Final = "The final answer is one JSON object and nothing else."
REMEMBERED: Final = 64  # heads of prompts
LONGEST_REMEMBERED: Final = 128 * 1024  # characters of one


def render_harmony(chat: ChatPrompt, scene: Scene) -> TokenPrompt:
    told = [*takewhile(_instructs, chat.messages)]
    own = {name: to for name, to in chat.recipients.items() if to.partition(".")[0] in scene.builtins}
    writer = _Writer(_head(_system(scene, bool(chat.tools)), _developer(told, chat.tools, scene.form)), own)
    writer.talk(chat.messages[len(told) :], scene.all_turns)
    writer.begin(scene)
    return TokenPrompt(tuple(writer.tokens))


def _instructs(message: Json) -> bool:
    return message["role"] in ("system", "developer")


def _head(system: str, developer: str) -> tuple[int, ...]:
    """Many requests share one."""
    short = len(system) + len(developer) <= LONGEST_REMEMBERED
    return _remembered(system, developer) if short else _encoded(system, developer)


def _encoded(system: str, developer: str) -> tuple[int, ...]:
    writer = _Writer(())
    writer.say("system", system)
    if developer:
        writer.say("developer", developer)
    return tuple(writer.tokens)


_remembered = lru_cache(maxsize=REMEMBERED)(_encoded)


def _system(scene: Scene, calls: bool) -> str:
    top = f"{scene.identity}\nKnowledge cutoff: {scene.cutoff}\nCurrent date: {scene.today}"
    known = vocabulary()
    builtins = [known.builtin(name) for name in sorted(scene.builtins)]
    tools = [namespace(one.name, one.description, one.tools) for one in builtins]
    channels = f"{CHANNELS}\n{TO_COMMENTARY}" if calls else CHANNELS
    return "\n\n".join([top, f"Reasoning: {scene.effort}", *(["# Tools", *tools] if tools else []), channels])


def _developer(told: Sequence[Json], tools: Sequence[Json], form: Form | None) -> str:
    instructions = "\n\n".join([_text(message["content"]) for message in told])
    sections = ["# Instructions", instructions] if instructions else []
    if tools:
        sections += ["# Tools", _functions(tools)]
    if form is not None:
        sections += ["# Response Formats", _format(form)]
    return "\n\n".join(sections)


def _functions(tools: Sequence[Json]) -> str:
    """Many requests offer the same, and to write them anew takes milliseconds."""
    told = encode(tools)
    return _written(told) if len(told) <= LONGEST_REMEMBERED else namespace(FUNCTIONS, "", tools)


@lru_cache(maxsize=REMEMBERED)
def _written(tools: bytes) -> str:
    return namespace(FUNCTIONS, "", decode(tools))


def _format(form: Form) -> str:
    if not isinstance(form, JsonSchemaFormat):
        return f"## json\n\n// {ANY_JSON}\n" + '{"type":"object"}'
    about = "" if form.description is UNSET else "".join([f"// {line}\n" for line in form.description.splitlines()])
    return f"## {form.name}\n\n{about}{json.dumps(form.schema, ensure_ascii=False, separators=(',', ':'))}"


class _Writer:
    def __init__(self, head: Sequence[int], own: Mapping[str, str] | None = None) -> None:
        """`own`: how it calls functions that it was trained with."""
        self.tokens = [*head]
        self._own = own or {}
        self._known = vocabulary()

    def talk(self, messages: Sequence[Json], all_turns: bool) -> None:
        """Thoughts before the last answer have served their purpose: the model was trained to do without them."""
        answered = max([n for n, message in enumerate(messages) if _answers(message)], default=-1)
        outputs = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
        for number, message in enumerate(messages):
            match message["role"]:
                case "assistant":
                    self._assistant(message, outputs, thinks=all_turns or number > answered)
                case "tool":
                    pass  # told with its call
                case "user":
                    self.say("user", _text(message["content"]))
                case _:
                    self.say("developer", f"# Instructions\n\n{_text(message['content'])}")

    def say(self, role: str, text: str, channel: Channel | None = None, to: str = "") -> None:
        self._start(role, channel, to)
        self._content(text, END)

    def begin(self, scene: Scene) -> None:
        """The header of the answer, as far as it is decided."""
        opening = scene.opening
        if not opening:
            self._header("assistant", None, "")
        elif opening == FINAL:
            self._start("assistant", "final", "", typed=scene.form is not None)
        elif opening == FUNCTIONS:
            self._header("assistant", "commentary", opening)
        else:
            self._start("assistant", "commentary", opening, typed=True)

    def _assistant(self, message: Json, outputs: dict[str, Json], thinks: bool) -> None:
        thought = message.get("reasoning_content")
        if thought and thinks:
            self.say("assistant", thought, "analysis")
        if message["content"]:
            self.say("assistant", _text(message["content"]), "final" if _answers(message) else "commentary")
        for call in message.get("tool_calls", ()):
            name, channel = self._recipient(call["function"]["name"])
            self._start("assistant", channel, name, typed=channel == "commentary")
            self._content(call["function"]["arguments"], CALL)
            if call["id"] in outputs:
                self.say(name, _text(outputs[call["id"]]["content"]), channel, to="assistant")

    def _recipient(self, name: str) -> tuple[str, Channel]:
        """It calls what it was trained with while it thinks."""
        return (self._own[name], "analysis") if name in self._own else (f"{FUNCTIONS}.{name}", "commentary")

    def _start(self, role: str, channel: Channel | None, to: str, typed: bool = False) -> None:
        self._header(role, channel, to)
        if typed:
            self.tokens += (*self._known.label(" "), CONSTRAIN, *self._known.label("json"))
        self.tokens.append(MESSAGE)

    def _header(self, role: str, channel: Channel | None, to: str) -> None:
        label = self._known.label
        self.tokens += (START, *label(role))
        if channel is not None:
            self.tokens += (CHANNEL, *label(channel))
        if to:
            self.tokens += label(f" to={to}")

    def _content(self, text: str, end: int) -> None:
        self.tokens += self._known.tokens(text)
        self.tokens.append(end)


def _answers(message: Json) -> bool:
    """Whether an assistant's message is an answer; what it says before it calls, or says so itself, is not."""
    spoken = message["role"] == "assistant" and message["content"] and not message.get("tool_calls")
    return bool(spoken) and message.get("phase") != "commentary"


def _text(content: str | list[Json] | None) -> str:
    return content if isinstance(content, str) else "\n".join(_texts(content or []))


def _texts(parts: Sequence[Json]) -> Iterator[str]:
    yield from [part["text"] for part in parts if part["type"] == "text"]
