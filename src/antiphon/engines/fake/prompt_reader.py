"""What the fake engine understands of a prompt: who said what last, and which tools it may call.

At text and token level it goes by the control marks of its own template, so a mark that somebody wrote
into a message is a part of that message.
"""

from collections.abc import Iterable
from typing import Any, Literal, assert_never

from msgspec import Struct, json
from msgspec.structs import replace

from antiphon.core.media.data_urls import Unreadable, read_data_url
from antiphon.core.media.images import look
from antiphon.core.prompt import ChatPrompt, Json, Prompt, Segment, TextPrompt, TokenPrompt
from antiphon.engines.fake.tokens import END, START, THINK, WIDTH, Level, decode, encode, marked, tokens_in

Mode = Literal["none", "auto", "required"]
_LARGEST = 64 * 1024 * 1024  # bytes of a picture
_NO_PARAMETERS: Json = {"type": "object"}
_FREE_INPUT: Json = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


class Tool(Struct, frozen=True):
    """A tool the model may call and the schema of its arguments."""

    name: str
    parameters: Json


class Reading(Struct, frozen=True, kw_only=True):
    text: str  # the whole prompt, to be counted and compared
    tokens: int
    width: int = WIDTH  # characters of a token
    said: str = ""  # the last thing a user said
    outputs: tuple[str, ...] = ()  # tool outputs at the very end
    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    thinks: bool | None = None  # what the template's enable_thinking said
    templated: bool = True  # it has marks of a template
    opening: str = ""  # of a Harmony answer, where the prompt has begun it


def read(prompt: Prompt, level: Level) -> Reading:
    if level == "tokens" and isinstance(prompt, TextPrompt):
        prompt = TokenPrompt(encode(prompt.segments))
    match prompt:
        case ChatPrompt():
            return _read_chat(prompt)
        case TextPrompt(segments):
            text = "".join([segment.text for segment in segments])
            return _plain(_read_marks(text, marked(segments), WIDTH), all(segment.control for segment in segments))
        case TokenPrompt(tokens):
            segments = tuple(decode(tokens))
            # One character for each token, so that they can be counted.
            text = "".join(["\0" if each.control else each.text for each in segments])
            return _plain(_read_marks(text, segments, 1), not any(each.control for each in segments))
        case _:
            assert_never(prompt)


def _plain(reading: Reading, raw: bool) -> Reading:
    """A prompt that no template made is what was said, as a whole."""
    return replace(reading, said=reading.text) if raw and not reading.templated else reading


def _read_chat(prompt: ChatPrompt) -> Reading:
    turns = [(message["role"], _said(message)) for message in prompt.messages]
    mode, tools = _allowed(prompt) if prompt.tools else ("none", ())
    text = _flat(turns, prompt)
    return Reading(
        text=text,
        tokens=tokens_in(len(text)),
        said=last_said(turns),
        outputs=outputs(turns),
        tools=tools if mode != "none" else (),
        must_call=mode == "required" and bool(tools),
        thinks=prompt.template_kwargs.get("enable_thinking"),
    )


def _flat(turns: list[tuple[str, str]], prompt: ChatPrompt) -> str:
    """As the template would put it, so that both levels count alike; with the tools as JSON in front."""
    lines = [f"{START}{role}\n{text}{END}\n" for role, text in turns]
    if prompt.tools:
        lines.insert(0, json.encode(prompt.tools).decode())
    lines.append(f"{START}assistant\n")
    return "".join(lines)


def _said(message: Json) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else " ".join([_part(part) for part in content or ()])
    calls = message.get("tool_calls")
    return text + json.encode(calls).decode() if calls else text


def _part(part: Json) -> str:
    match part.get("type"):
        case "image_url" | "input_image":
            return _seen(part.get("image_url"))
        case "file" | "input_file":
            name = (part.get("file") or part).get("filename")
            return f"[file {name}]" if name else "[file]"
        case "input_audio":
            return "[audio]"
        case _:
            return str(part.get("text") or part.get("refusal") or "")


def _seen(image: Any) -> str:
    """It sees what kind of picture it is and how large."""
    url = image.get("url") if isinstance(image, dict) else image
    try:
        picture = look(read_data_url(str(url), _LARGEST).body)
    except Unreadable:
        return "[image]"
    return f"[image {picture.media_type.removeprefix('image/')} {picture.width}x{picture.height}]"


def _read_marks(text: str, segments: Iterable[Segment], width: int) -> Reading:
    turns: list[tuple[str, str]] = []
    body: list[str] = []
    thinks = None
    templated = False
    for segment in segments:
        if not segment.control:
            body.append(segment.text)
        elif segment.text == THINK:
            thinks = templated = True
        else:
            templated = True
            if segment.text == END:
                role, _, said = "".join(body).partition("\n")
                turns.append((role, said))
            body = []
    return Reading(
        text=text,
        tokens=tokens_in(len(text), width),
        width=width,
        said=last_said(turns),
        outputs=outputs(turns),
        thinks=thinks,
        templated=templated,
    )


def last_said(turns: list[tuple[str, str]]) -> str:
    for role, text in reversed(turns):
        if role == "user":
            return text
    return ""


def outputs(turns: list[tuple[str, str]]) -> tuple[str, ...]:
    found: list[str] = []
    for role, text in reversed(turns):
        if role != "tool":
            break
        found.insert(0, text)
    return tuple(found)


def _allowed(prompt: ChatPrompt) -> tuple[Mode, tuple[Tool, ...]]:
    """tool_choice, in its forms with the name inside of `function` or beside `type`."""
    tools = tuple(_tool(tool) for tool in prompt.tools if tool.get("type") in ("function", "custom"))
    choice = prompt.tool_choice
    if isinstance(choice, str):
        return ("required" if choice == "required" else "none" if choice == "none" else "auto"), tools
    if choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools") or choice
        names = [_name(tool) for tool in inner.get("tools", ())]
        mode: Mode = "required" if inner.get("mode") == "required" else "auto"
        return mode, tuple(tool for tool in tools if tool.name in names)
    return "required", tuple(tool for tool in tools if tool.name == _name(choice))


def _tool(tool: Json) -> Tool:
    declared = tool.get("function") or tool
    parameters = _FREE_INPUT if tool["type"] == "custom" else declared.get("parameters") or _NO_PARAMETERS
    return Tool(_name(tool), parameters)


def _name(tool: Json) -> str:
    inner: Any = tool.get(tool.get("type", "function")) or tool
    return str(inner.get("name", ""))
