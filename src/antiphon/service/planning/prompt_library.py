"""Prompts that the operator keeps in a folder, for requests that name one: `prompt: {id, version, variables}`.

Filled once, from left to right: what a variable says is never looked at again, and becomes a part of an ordinary item,
like anything else that a client sends. The folder is read when the server starts and on SIGHUP.

A folder of prompts → templates: NAME.toml is one version of NAME, NAME/VERSION.toml one of several.
"""

import asyncio
import logging
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, ValidationError
from msgspec.structs import replace

from antiphon.core.prompt_template import Filling, Template, TemplateMessage, pieces
from antiphon.errors import StartupError, UnknownPrompt, UnsupportedParameter
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.response import PromptRef

Versions = Mapping[str, Template]

_FIRST: Final = "1"  # the version of a file that says none
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_LARGEST = 1 << 20  # bytes of a file


class _Message(Struct, forbid_unknown_fields=True):
    content: str
    role: Literal["system", "developer", "user", "assistant"] = "user"


class _File(Struct, kw_only=True, forbid_unknown_fields=True):
    id: str | None = None
    version: str | None = None
    instructions: str = ""
    messages: list[_Message] = []
    model: str | None = None


def read_folder(folder: Path) -> dict[str, Versions]:
    """By id and version. Raises StartupError with the place of what does not fit."""
    if not folder.is_dir():
        raise StartupError(f"--prompt-dir names {folder}, which is not a folder.")
    found: dict[str, dict[str, Template]] = {}
    for path, name, version in _files(folder):
        written = _read(path)
        prompt_id = written.id or name
        numbered = written.version or version
        for word in (prompt_id, numbered):
            if not _NAME.match(word):
                raise StartupError(f"{path}: {word!r} is not a name: letters, digits, '.', '_' and '-' make one.")
        versions = found.setdefault(prompt_id, {})
        if numbered in versions:
            raise StartupError(f"{path}: the prompt {prompt_id} has a version {numbered} already.")
        versions[numbered] = _template(written)
    return {name: dict(sorted(versions.items(), key=_age)) for name, versions in found.items()}


def newest(versions: Versions) -> str:
    """They are in their order: numbers by their value, 10 after 9."""
    return [*versions][-1]


def _files(folder: Path) -> Iterator[tuple[Path, str, str]]:
    for path in sorted(folder.glob("*.toml")):
        yield path, path.stem, _FIRST
    for path in sorted(folder.glob("*/*.toml")):
        yield path, path.parent.name, path.stem


def _read(path: Path) -> _File:
    try:
        if path.stat().st_size > _LARGEST:
            raise StartupError(f"{path} is larger than {_LARGEST} bytes.")
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File)
    except OSError as error:
        raise StartupError(f"{path} cannot be read: {error.strerror}.")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{path} is not valid TOML: {error}.")
    except ValidationError as error:
        raise StartupError(f"{path} does not fit: {error}.")


def _template(written: _File) -> Template:
    messages = [TemplateMessage(role=one.role, content=pieces(one.content)) for one in written.messages]
    return Template(instructions=pieces(written.instructions), messages=tuple(messages), model=written.model)


def _age(version: tuple[str, Any]) -> list[tuple[int, int, str]]:
    words = re.split(r"(\d+)", version[0])
    return [(0, int(word), "") if word.isdigit() else (1, 0, word) for word in words if word]


_SHOWN: Final = 64  # characters of a name that was sent
_NONE = "This server keeps no prompts (--prompt-dir): send the text in `instructions` and `input`."

log = logging.getLogger(__name__)


class KeptPrompts:
    """`folder` None: there are none."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._kept: Mapping[str, Versions] = {} if folder is None else read_folder(folder)

    async def read_again(self) -> None:
        """What does not fit is said in the log, and nothing changes."""
        if self._folder is None:
            return
        try:
            self._kept = await asyncio.to_thread(read_folder, self._folder)
        except StartupError as error:
            log.error("The prompts are left as they were: %s", error)
        else:
            log.info("The prompts were read again: %d", len(self._kept))

    def filled(self, decoded: Decoded) -> Decoded:
        """The request with what its prompt says, ahead of its own input."""
        request = decoded.request
        ref = request.prompt
        assert ref is not None
        if self._folder is None:
            raise UnsupportedParameter(_NONE, param="prompt")
        version, template = self._found(ref)
        filling = Filling(template, ref.variables or {})
        said = {
            "prompt": replace(ref, version=version),
            "input": [*filling.items(), *request.input],
            "instructions": request.instructions or filling.instructions(),
            "model": request.model or template.model,
        }
        named = frozenset(name for name, value in said.items() if value)
        return replace(decoded, request=replace(request, **said), sent=decoded.sent | named)

    def _found(self, ref: PromptRef) -> tuple[str, Template]:
        versions = self._kept.get(ref.id)
        if versions is None:
            raise UnknownPrompt(f"There is no prompt {ref.id[:_SHOWN]!r}.", param="prompt.id")
        version = newest(versions) if ref.version is None else ref.version
        if version not in versions:
            known = ", ".join(_first(versions))
            raise UnknownPrompt(
                f"The prompt {ref.id[:_SHOWN]!r} has no version {version[:_SHOWN]!r}. It has: {known}.",
                param="prompt.version",
            )
        return version, versions[version]


def _first(versions: Versions) -> Iterator[str]:
    for number, name in enumerate(versions):
        if number == 10:
            yield "…"
            return
        yield name
