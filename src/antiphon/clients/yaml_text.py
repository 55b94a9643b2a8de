"""Adds elements to a list in a YAML file, between two comments by which they are found again."""

import re
import textwrap

from antiphon.clients.base import ValuePath

_BLOCK = re.compile(r"^( *)# antiphon connect: begin\n.*?^ *# antiphon connect: end\n", re.MULTILINE | re.DOTALL)
_FLOW = "it is not in block style at {!r}"


def add_yaml_elements(text: str, path: ValuePath, template: str) -> str:
    """Add the marked elements of the template below the path, or replace those that were added before.

    Raises ValueError.
    """
    marked = _BLOCK.search(template)
    assert marked is not None
    block = textwrap.dedent(marked[0])
    if found := _BLOCK.search(text):
        return text[: found.start()] + textwrap.indent(block, found[1]) + text[found.end() :]
    lines = text.splitlines(keepends=True)
    lines[-1] = lines[-1].removesuffix("\n") + "\n"
    if not path:
        _check_list(lines)
        return "".join([*lines, block])
    at, indent = len(lines), ""
    for depth, name in enumerate(path):
        found_at = _find_name(lines, 0 if depth == 0 else at, indent, name)
        if found_at is None:
            keys = "".join(f"{indent}{'  ' * level}{key}:\n" for level, key in enumerate(path[depth:]))
            block = keys + textwrap.indent(block, indent + "  " * len(path[depth:]))
            return "".join([*lines[:at], block, *lines[at:]])
        at, indent = found_at + 1, _find_indent(lines, found_at + 1, indent)
    following = _find_line(lines, at)
    if following.startswith(indent) and not following[len(indent) :].startswith("- "):
        raise ValueError(_FLOW.format(path[-1]))
    return "".join([*lines[:at], textwrap.indent(block, indent), *lines[at:]])


def _find_name(lines: list[str], at: int, indent: str, name: str) -> int | None:
    """Return the line of a key at this level, from line `at` to the end of the mapping."""
    for number, line in enumerate(lines[at:], at):
        if _is_content(line) and not line.startswith(indent):
            return None
        if re.match(rf"{indent}[\"']?{re.escape(name)}[\"']?\s*:", line):
            if not re.fullmatch(rf"{indent}{re.escape(name)}:\s*(#.*)?\n", line):
                raise ValueError(_FLOW.format(name))
            return number
    return None


def _find_indent(lines: list[str], at: int, outer: str) -> str:
    """Return the indentation of what follows a key; a list may have that of the key."""
    line = _find_line(lines, at)
    indent = line[: len(line) - len(line.lstrip(" "))]
    is_inside = len(indent) > len(outer) or (indent == outer and line[len(indent) :].startswith("- "))
    return indent if is_inside else f"{outer}  "


def _find_line(lines: list[str], at: int) -> str:
    return next(filter(_is_content, lines[at:]), "")


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _check_list(lines: list[str]) -> None:
    for line in filter(_is_content, lines):
        if line[0] not in "- " and line.strip() != "---":
            raise ValueError(_FLOW.format(line.strip()[:40]))
