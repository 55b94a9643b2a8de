"""Tools in plain words, for chat templates that know none: the system message tells of them, in the format of Hermes.

    the system    # Tools … <tools> a JSON schema on each line </tools> …
    the assistant <tool_call> {"name": …, "arguments": …} </tool_call>
    the user      <tool_response> what came back </tool_response>

The template sees nothing but system, user and assistant. These marks are plain text, so nobody else may write one:
in JSON the `<` of a mark is `\\u003c`, and in any other text a space without width comes after it.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

from msgspec.structs import replace

from antiphon.core.multi_match import Occurrences
from antiphon.core.prompt import ChatPrompt, Json
from antiphon.core.zero_width import GAP

FORMAT: Final = "hermes"  # in which calls come back
MARKS: Final = ("<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

_MARKS: Final = Occurrences(MARKS)
_OFFER: Final = """\
# Tools

You can call these functions to help the user. Each line between <tools> and </tools> describes one of them:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and its arguments between <tool_call> and </tool_call>, like this:
<tool_call>
{{"name": "name of the function", "arguments": {{"name of a parameter": "its value"}}}}
</tool_call>
Then stop: what the function gives comes back between <tool_response> and </tool_response>. \
Call a function only if it helps; otherwise answer the user."""
_ONE: Final = "Call one function at a time."
_SEVERAL: Final = (
    "To call several functions at once, write one such object after the other, each between its own marks."
)
_MUST: Final = "Now you must call a function."
_MUST_CALL: Final = "Now you must call the function {name}."


def in_words(chat: ChatPrompt) -> ChatPrompt:
    """The same chat if it has nothing to do with tools."""
    if not chat.tools and not any(_is_of_tools(message) for message in chat.messages):
        return chat
    messages = list(_told(chat.messages))
    if chat.tools:
        messages = _headed(messages, _offer(chat))
    return replace(chat, messages=tuple(messages), tools=(), tool_choice="auto")


def _is_of_tools(message: Json) -> bool:
    return message["role"] == "tool" or "tool_calls" in message


def _offer(chat: ChatPrompt) -> str:
    schemas = "\n".join([_json(tool) for tool in chat.tools])
    sentences = [_OFFER.format(tools=schemas), _SEVERAL if chat.parallel_tool_calls else _ONE]
    match chat.tool_choice:
        case "required":
            sentences.append(_MUST)
        case {"function": {"name": name}}:
            sentences.append(_MUST_CALL.format(name=name))
    return " ".join(sentences)


def _headed(messages: list[Json], offer: str) -> list[Json]:
    """After the instructions, if there are any."""
    if not messages or messages[0]["role"] not in ("system", "developer"):
        return [{"role": "system", "content": offer}, *messages]
    head = messages[0]
    return [{**head, "content": _joined([*_parts(head["content"]), _text(f"\n\n{offer}")])}, *messages[1:]]


def _told(messages: Iterable[Json]) -> Iterable[Json]:
    """Outputs that stand together are one message of the user."""
    for outputs, run in groupby(messages, key=lambda message: message["role"] == "tool"):
        if outputs:
            parts = [part for message in run for part in _output(message["content"])]
            yield {"role": "user", "content": _joined([*parts[:-1], _text(parts[-1]["text"].rstrip("\n"))])}
        else:
            yield from map(_said, run)


def _output(content: Any) -> list[Json]:
    return [_text("<tool_response>\n"), *_plain(content), _text("\n</tool_response>\n")]


def _said(message: Json) -> Json:
    """What anybody said, with the calls after it; none of the marks in it are ours."""
    calls = "\n".join([_call(call["function"]) for call in message.get("tool_calls", ())])
    others = {key: value for key, value in message.items() if key != "tool_calls"}
    said = _plain(message["content"])
    if calls:
        said.append(_text(f"\n{calls}" if said else calls))
    return {**others, "content": _joined(said)}


def _call(function: Json) -> str:
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = function["arguments"]
    return f"<tool_call>\n{_json({'name': function['name'], 'arguments': arguments})}\n</tool_call>"


def _json(value: Any) -> str:
    """A mark within a string of JSON, and nowhere else could one be, is written with an escape that means the same."""
    return _MARKS.changed(json.dumps(value, ensure_ascii=False), "\\u003c")


def _plain(content: Any) -> list[Json]:
    """Texts that stand together are one: a mark may have been cut in two."""
    made: list[Json] = []
    for is_text, run in groupby(_parts(content), key=lambda part: part["type"] == "text"):
        parts = list(run)
        made += [_text(_MARKS.broken("".join([part["text"] for part in parts]), GAP))] if is_text else parts
    return made


def _parts(content: Any) -> list[Json]:
    if isinstance(content, str):
        return [_text(content)] if content else []
    return list(content or ())


def _joined(parts: Sequence[Json]) -> str | list[Json]:
    """Text where it is nothing else."""
    if all(part["type"] == "text" for part in parts):
        return "".join([part["text"] for part in parts])
    return list(parts)


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
