"""Parses prompts for the fake engine: the last user text, the tool outputs at the end, and the tools that may be
called.

At text and token level it uses the control markers of its own template, so a marker that a user wrote into a message is
part of that message's text.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from msgspec import Struct, json

from antiphon.core.data_urls import UnreadableMedia, read_data_url
from antiphon.core.images import read_image_info
from antiphon.core.prompt import ChatPrompt, Json, Prompt, Segment, TextPrompt, TokenPrompt
from antiphon.engines.fake.tokens import END, START, THINK, WIDTH, Level, count_tokens, decode, encode, split_markers

MAX_PROMPTS = 64
MAX_PROMPT_CHARS = 131_072  # per prompt: 32,768 tokens of four characters
_MAX_IMAGE_BYTES = 64 * 1024 * 1024
_NO_PARAMETERS: Json = {"type": "object"}
_FREE_INPUT: Json = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


class PromptTool(Struct, frozen=True):
    """A tool that the model may call, and the JSON schema of its arguments."""

    name: str
    parameters: Json


class ParsedPrompt(Struct, frozen=True, kw_only=True):
    """The parts of a prompt that the answer depends on."""

    text: str  # the complete prompt, for counting and prefix comparison
    turns: Sequence[tuple[str, str]]  # role and text of each message
    width: int = WIDTH  # characters per token
    tools: tuple[PromptTool, ...] = ()
    must_call: bool = False
    enable_thinking: bool | None = None  # the template variable `enable_thinking`; None if not set
    harmony_opening: str = ""  # the message that a Harmony prompt has opened for the answer

    @property
    def tokens(self) -> int:
        return count_tokens(len(self.text), self.width)

    @property
    def user_text(self) -> str:
        return next((text for role, text in reversed(self.turns) if role == "user"), "")

    @property
    def tool_outputs(self) -> tuple[str, ...]:
        """The texts of the tool messages at the end, in order."""
        trailing = takewhile(lambda turn: turn[0] == "tool", reversed(self.turns))
        return tuple(text for _, text in trailing)[::-1]


def parse_prompt(prompt: Prompt, level: Level) -> ParsedPrompt:
    if level == "tokens" and isinstance(prompt, TextPrompt):
        prompt = TokenPrompt(encode(prompt.segments))
    match prompt:
        case ChatPrompt():
            return _parse_chat(prompt)
        case TextPrompt(segments):
            text = "".join([segment.text for segment in segments])
            raw = all(segment.control for segment in segments)
            return _parse_markers(text, split_markers(segments), WIDTH, raw)
        case TokenPrompt(tokens):
            segments = tuple(decode(tokens))
            # One character per token, so that tokens can be counted by length.
            text = "".join(["\0" if each.control else each.text for each in segments])
            return _parse_markers(text, segments, 1, raw=True)


def _parse_chat(prompt: ChatPrompt) -> ParsedPrompt:
    turns = [(message["role"], _message_text(message)) for message in prompt.messages]
    must_call, tools = _allowed_tools(prompt)
    return ParsedPrompt(
        text=_render_chat(turns, prompt),
        turns=turns,
        tools=tools,
        must_call=must_call and bool(tools),
        enable_thinking=prompt.template_kwargs.get("enable_thinking"),
    )


def _render_chat(turns: list[tuple[str, str]], prompt: ChatPrompt) -> str:
    """Render the chat like the template of the text level, so that both count alike, after the tools as JSON."""
    lines = [f"{START}{role}\n{text}{END}\n" for role, text in turns]
    if prompt.tools:
        lines.insert(0, json.encode(prompt.tools).decode())
    lines.append(f"{START}assistant\n")
    return "".join(lines)


def _message_text(message: Json) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else " ".join([_part_text(part) for part in content or ()])
    calls = message.get("tool_calls")
    return text + json.encode(calls).decode() if calls else text


def _part_text(part: Json) -> str:
    match part.get("type"):
        case "image_url" | "input_image":
            return _describe_image(part.get("image_url"))
        case "file" | "input_file":
            name = (part.get("file") or part).get("filename")
            return f"[file {name}]" if name else "[file]"
        case "input_audio":
            return "[audio]"
        case _:
            return str(part.get("text") or part.get("refusal") or "")


def _describe_image(image_url: Any) -> str:
    url = image_url.get("url") if isinstance(image_url, dict) else image_url
    try:
        info = read_image_info(read_data_url(str(url), _MAX_IMAGE_BYTES).body)
    except UnreadableMedia:
        return "[image]"
    return f"[image {info.media_type.removeprefix('image/')} {info.width}x{info.height}]"


def _parse_markers(text: str, segments: Iterable[Segment], width: int, raw: bool) -> ParsedPrompt:
    """Parse a rendered prompt. A `raw` one without markers was rendered by no template and is one user text."""
    turns: list[tuple[str, str]] = []
    body: list[str] = []
    enable_thinking = None
    has_markers = False
    for segment in segments:
        if not segment.control:
            body.append(segment.text)
        elif segment.text == THINK:
            enable_thinking = has_markers = True
        else:
            has_markers = True
            if segment.text == END:
                role, _, content = "".join(body).partition("\n")
                turns.append((role, content))
            body = []
    turns = [("user", text)] if raw and not has_markers else turns
    return ParsedPrompt(text=text, turns=turns, width=width, enable_thinking=enable_thinking)


def _allowed_tools(prompt: ChatPrompt) -> tuple[bool, tuple[PromptTool, ...]]:
    """Return whether a tool must be called, and which may be. The name may stand in `function` or beside `type`."""
    tools = tuple(_to_tool(tool) for tool in prompt.tools if tool.get("type") in ("function", "custom"))
    choice = prompt.tool_choice
    if isinstance(choice, str):
        return choice == "required", () if choice == "none" else tools
    if choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools") or choice
        names = [_tool_name(tool) for tool in inner.get("tools", ())]
        return inner.get("mode") == "required", tuple(tool for tool in tools if tool.name in names)
    return True, tuple(tool for tool in tools if tool.name == _tool_name(choice))


def _to_tool(tool: Json) -> PromptTool:
    declared = tool.get("function") or tool
    parameters = _FREE_INPUT if tool["type"] == "custom" else declared.get("parameters") or _NO_PARAMETERS
    return PromptTool(_tool_name(tool), parameters)


def _tool_name(tool: Json) -> str:
    inner: Any = tool.get(tool.get("type", "function")) or tool
    return str(inner.get("name", ""))


class PrefixCache:
    """Simulates the prefix cache of an engine: how much of a prompt would have been cached. It stores the beginnings of
    the latest prompts and computes nothing else.
    """

    def __init__(self) -> None:
        self._recent: OrderedDict[tuple[str | None, str], None] = OrderedDict()

    def match(self, text: str, salt: str | None) -> int:
        """Return how many characters the prompt shares with an earlier one of the same salt, and store it."""
        text = text[:MAX_PROMPT_CHARS]
        best = len(text) if (salt, text) in self._recent else self._longest_match(text, salt)
        self._recent[salt, text] = None
        self._recent.move_to_end((salt, text))
        if len(self._recent) > MAX_PROMPTS:
            self._recent.popitem(last=False)
        return best

    def _longest_match(self, text: str, salt: str | None) -> int:
        best = 0
        for key, earlier in self._recent:
            # A longer match must share the next character; this check rejects most prompts at no cost.
            if key == salt and text[best : best + 1] == earlier[best : best + 1] and text[:best] == earlier[:best]:
                best = _common_prefix_length(text, earlier, best)
        return best


def _common_prefix_length(one: str, other: str, low: int) -> int:
    """Return the length of the common prefix, at least `low`, by bisection."""
    high = min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
