"""Edits JSON as editors write it, with comments and trailing commas: everything outside of a changed value stays."""

import json
import re
from typing import Any

from msgspec import Struct, field

from antiphon.clients.base import ValuePath

_SPACE = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_scan_scalar = json.JSONDecoder().raw_decode
_INDENT = re.compile(r"^([ \t]+)\S", re.MULTILINE)


class JsonNode(Struct):
    """A value and its place in the text. `children`: members of an object, or elements of a list that have a name."""

    start: int
    end: int
    value: Any
    children: dict[str, "JsonNode"] = field(default_factory=dict)


def parse_json(text: str) -> JsonNode:
    """Raises ValueError if the text is no JSON, apart from comments and trailing commas."""
    node = _scan(text, 0)
    if _skip(text, node.end) != len(text):
        raise ValueError(f"there is something after its end, at character {node.end}")
    return node


def set_json_value(text: str, path: ValuePath, value: Any) -> str:
    """Set the value at a path, with the indentation of the text. Raises ValueError."""
    node = parse_json(text)
    for depth, name in enumerate(path):
        if not isinstance(node.value, dict | list):
            raise ValueError(f"the value around {name!r} is neither an object nor a list")
        if name not in node.children:
            for outer in reversed(path[depth + 1 :]):
                value = {outer: value}
            return _insert(text, node, name, value)
        node = node.children[name]
    if node.value == value:
        return text
    return text[: node.start] + _render(text, value, _indent_at(text, node.start)) + text[node.end :]


def _insert(text: str, node: JsonNode, name: str, value: Any) -> str:
    """Insert a member at the beginning, where neither comments nor commas have to be moved."""
    outer = _indent_at(text, node.start)
    inner = outer + _find_indent(text)
    label = f"{json.dumps(name, ensure_ascii=False)}: " if isinstance(node.value, dict) else ""
    added = f"\n{inner}{label}{_render(text, value, inner)}"
    following = text[node.start + 1 : node.end - 1]
    if not node.value:
        following = following if "\n" in following else f"{following.rstrip()}\n{outer}"
    else:
        first_line = following.partition("\n")[0].strip()
        keeps_line = "\n" in following and (not first_line or first_line.startswith("//"))
        added += "," if keeps_line else f",\n{inner}"
        following = following if keeps_line else following.lstrip()
    return text[: node.start + 1] + added + following + text[node.end - 1 :]


def _render(text: str, value: Any, indent: str) -> str:
    return json.dumps(value, indent=_find_indent(text), ensure_ascii=False).replace("\n", f"\n{indent}")


def _find_indent(text: str) -> str:
    found = _INDENT.search(text)
    return found[1] if found else "  "


def _indent_at(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _scan(text: str, at: int) -> JsonNode:
    at = _skip(text, at)
    match text[at : at + 1]:
        case "{":
            return _scan_members(text, JsonNode(at, at, {}), "}")
        case "[":
            return _scan_members(text, JsonNode(at, at, []), "]")
    value, end = _scan_scalar(text, at)
    return JsonNode(at, end, value)


def _scan_members(text: str, node: JsonNode, closing: str) -> JsonNode:
    at = _skip(text, node.start + 1)
    while text[at : at + 1] != closing:
        name = None
        if closing == "}":
            name, at = _scan_scalar(text, at)
            at = _expect(text, _skip(text, at), ":")
        child = _scan(text, at)
        if closing == "}":
            node.value[name] = child.value
        else:
            node.value.append(child.value)
            name = child.value.get("name") if isinstance(child.value, dict) else None
        if isinstance(name, str):
            node.children[name] = child
        at = _skip(text, child.end)
        if text[at : at + 1] != closing:
            at = _skip(text, _expect(text, at, ","))
    node.end = at + 1
    return node


def _expect(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise ValueError(f"{character} is missing at character {at}")
    return at + 1
