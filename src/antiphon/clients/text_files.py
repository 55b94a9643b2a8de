"""The files of a client: new ones from a template, others with the values of the template set in their text.

Other contents and comments stay as they are. The result is parsed again and compared with what it should be: a file in
an unexpected form is refused, never damaged.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from antiphon.clients.base import ClientFile, ServerConnection, ValuePath
from antiphon.clients.json_text import parse_json, set_json_value
from antiphon.clients.yaml_text import add_yaml_elements
from antiphon.errors import StartupError

_TEMPLATES = Path(__file__).with_name("templates")
_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)
_SCALAR = r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[^\s#\"'\[{]+"
_BYTE_ORDER_MARK = "\ufeff"


def render_file(file: ClientFile, connection: ServerConnection) -> str:
    """Return the text of a new file."""
    from jinja2 import Environment, StrictUndefined  # imported on demand: 2 MiB

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"json": _quote, "variable": _quote_variable}
    template = environment.from_string((_TEMPLATES / file.template).read_text("utf-8"))
    models = connection.list_facts()
    return template.render(
        url=connection.url, api=f"{connection.url}/v1", key=connection.key, models=models, model=models[0]
    )


def edit_text(file: ClientFile, connection: ServerConnection, text: str) -> str:
    """Return the text of a file with the values of the template. Raises StartupError if it cannot be changed."""
    template = render_file(file, connection)
    mark, newline = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else "", "\r\n" if "\r\n" in text else "\n"
    text = text.removeprefix(mark).replace("\r\n", "\n")
    if not text.strip():
        return template
    try:
        edited = _merge(file, template, text)
    except (ValueError, RecursionError) as error:
        raise StartupError(f"{file.path} cannot be edited: {error}. Change it yourself: --print shows how.") from None
    return mark + edited.replace("\n", newline)


def _merge(file: ClientFile, template: str, text: str) -> str:
    match file.kind:
        case "yaml":
            return add_yaml_elements(text, file.paths[0], template)
        case "env":
            return _set_variables(text, template)
        case "txt":  # a program, which is written as a whole
            return template
    parse = tomllib.loads if file.kind == "toml" else lambda content: parse_json(content).value
    edited, expected, source = text, deepcopy(parse(text)), parse(template)
    for path, value in reversed([*_list_values(source, file.paths)]):  # later ones are put in front of earlier ones
        if file.kind == "json":
            edited = set_json_value(edited, path, value)
        else:
            edited = _set_table(edited, path, value) if isinstance(value, dict) else _set_key(edited, path[0], value)
        expected = _put(expected, path, value)
    if parse(edited) != expected:
        raise ValueError("it has a form that is not supported")
    return edited


def _list_values(source: Any, paths: tuple[ValuePath, ...]) -> Iterator[tuple[ValuePath, Any]]:
    """Yield the values at the paths. `*` stands for all members, by themselves."""
    for path in paths:
        value = source if isinstance(source, dict) else {one["name"]: one for one in source}
        for name in path:
            if name == "*":
                yield from (((*path[:-1], member), value[member]) for member in value)
                break
            value = value[name]
        else:
            yield path, value


def _put(content: Any, path: ValuePath, value: Any) -> Any:
    """Return the content with a value; in a list it replaces the element of its name, or is the first one."""
    if not path:
        return value
    if isinstance(content, list):
        named = [isinstance(one, dict) and one.get("name") == path[0] for one in content]
        return (
            [value if is_it else one for one, is_it in zip(content, named, strict=True)]
            if any(named)
            else [value, *content]
        )
    if not isinstance(content, dict):
        raise ValueError(f"the value around {path[0]!r} is no object")
    return {**content, path[0]: _put(content.get(path[0], {}), path[1:], value)}


def _set_key(text: str, name: str, value: Any) -> str:
    """Set a key of the root table, in its line or in the first one."""
    table = _TABLE.search(text)
    found = re.compile(rf"^[ \t]*{name}[ \t]*=[ \t]*({_SCALAR})", re.MULTILINE).search(
        text, 0, table.start() if table else len(text)
    )
    if found is None:
        separator = "\n" if text.startswith("[") else ""
        return f"{name} = {_quote(value)}\n{separator}{text}"
    return text[: found.start(1)] + _quote(value) + text[found.end(1) :]


def _set_table(text: str, path: ValuePath, values: dict[str, Any]) -> str:
    """Replace a table, up to its last value, or append it."""
    table = "\n".join([f"[{'.'.join(path)}]", *(f"{name} = {_quote(value)}" for name, value in values.items())])
    names = r"[ \t]*\.[ \t]*".join(rf"[\"']?{re.escape(name)}[\"']?" for name in path)
    found = re.compile(rf"^[ \t]*\[[ \t]*{names}[ \t]*\].*$", re.MULTILINE).search(text)
    if found is None:
        return f"{text.rstrip()}\n\n{table}\n"
    following = _TABLE.search(text, found.end())
    content = text[found.start() : following.start() if following else len(text)]
    tail = re.search(r"(?:\n[ \t]*(?:#[^\n]*)?)*$", content)
    return text[: found.start()] + table + text[found.start() + (tail.start() if tail else len(content)) :]


def _set_variables(text: str, template: str) -> str:
    for line in template.splitlines():
        name = line.partition("=")[0]
        found = re.compile(rf"^[ \t]*(?:export[ \t]+)?({name}[ \t]*=.*)$", re.MULTILINE).search(text)
        if found:
            text = text[: found.start(1)] + line + text[found.end(1) :]
        else:
            text = f"{text.removesuffix(chr(10))}\n{line}\n"
    return text


def _quote(value: Any) -> str:
    """Quote a value for JSON, TOML and YAML."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _quote_variable(value: str) -> str:
    """Quote a value for files that shells and programs read; most values need no quotes."""
    return shlex.quote("".join(character for character in value if character.isprintable()))
