"""Prompt library: templates in an operator's folder, for requests with `prompt: {id, version, variables}`.

NAME.toml is the only version of NAME; NAME/VERSION.toml is one of several. The folder is read at startup and on SIGHUP.

`{{name}}` marks a variable. Only the operator's text is split, and only once: variable values are never scanned for
names. Images and files become parts of a user message, between its texts.
"""

import asyncio
import logging
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, ValidationError
from msgspec.structs import replace

from antiphon.errors import InvalidValue, MissingParameter, StartupError, UnknownPrompt, UnsupportedParameter
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.items import InputItem, Message
from antiphon.protocol.types.parts import InputFile, InputImage, InputText, MessagePart, OutputText
from antiphon.protocol.types.response import PromptRef

VariableValue = str | InputText | InputImage | InputFile
TemplatePiece = tuple[bool, str]  # (is a variable name, text)

_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_.-]{0,63})\s*\}\}")


class TemplateMessage(Struct, frozen=True, forbid_unknown_fields=True):
    content: str
    role: Literal["system", "developer", "user", "assistant"] = "user"


class PromptTemplate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of the folder. `id` and `version` are derived from its path if it does not name them."""

    id: str | None = None
    version: str | None = None
    instructions: str = ""
    messages: tuple[TemplateMessage, ...] = ()
    model: str | None = None  # for requests that name no model

    @property
    def variable_names(self) -> dict[str, None]:
        """Names of the variables, each once, in order of appearance."""
        texts = [self.instructions, *[message.content for message in self.messages]]
        return dict.fromkeys(piece for text in texts for is_name, piece in split_template(text) if is_name)


@lru_cache(maxsize=1024)
def split_template(text: str) -> tuple[TemplatePiece, ...]:
    """Split a text into literal pieces and variable names."""
    found = [(bool(number % 2), part) for number, part in enumerate(_VARIABLE.split(text))]
    return tuple(piece for piece in found if piece[1])


class FilledTemplate:
    """A template with values. Raises InvalidValue for unknown variables and MissingParameter for missing ones."""

    def __init__(self, template: PromptTemplate, variables: Mapping[str, VariableValue]) -> None:
        self._template = template
        self._variables = variables
        names = template.variable_names
        for name in variables:
            if name not in names:
                available = ", ".join(names) or "none"
                raise InvalidValue(
                    f"This prompt has no variable {name[:64]!r}. It has: {available}.",
                    param=f"prompt.variables.{name[:64]}",
                )
        for name in names:
            if name not in variables:
                param = f"prompt.variables.{name}"
                raise MissingParameter(f"Missing required parameter: '{param}'.", param=param)

    def render_instructions(self) -> str | None:
        return "".join([self._render_text(piece) for piece in split_template(self._template.instructions)]) or None

    def render_items(self) -> list[InputItem]:
        return [Message(role=one.role, content=[*self._render_parts(one)]) for one in self._template.messages]

    def _render_parts(self, message: TemplateMessage) -> Iterator[MessagePart]:
        if message.role != "user":
            text = "".join([self._render_text(piece) for piece in split_template(message.content)])
            yield OutputText(text=text) if message.role == "assistant" else InputText(text=text)
            return
        texts: list[str] = []
        for piece in split_template(message.content):
            value = self._resolve(piece)
            if isinstance(value, InputImage | InputFile):
                if texts:
                    yield InputText(text="".join(texts))
                    texts = []
                yield value
            else:
                texts.append(_to_text(value))
        if texts:
            yield InputText(text="".join(texts))

    def _resolve(self, piece: TemplatePiece) -> VariableValue:
        is_name, text = piece
        return self._variables[text] if is_name else text

    def _render_text(self, piece: TemplatePiece) -> str:
        value = self._resolve(piece)
        if isinstance(value, InputImage | InputFile):
            raise InvalidValue(
                f"The variable {piece[1]!r} must be text in this position.", param=f"prompt.variables.{piece[1]}"
            )
        return _to_text(value)


def _to_text(value: str | InputText) -> str:
    return value if isinstance(value, str) else value.text


Versions = Mapping[str, PromptTemplate]

_DEFAULT_VERSION: Final = "1"  # version of a file that names none
_NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_MAX_FILE_BYTES = 1 << 20  # bytes


def read_folder(folder: Path) -> dict[str, Versions]:
    """Read all templates, by id and version. Raises StartupError with the path of an invalid file."""
    if not folder.is_dir():
        raise StartupError(f"--prompt-dir names {folder}, which is not a folder.")
    prompts: dict[str, dict[str, PromptTemplate]] = {}
    for path, name, version in _list_files(folder):
        template = _read_file(path)
        prompt_id = template.id or name
        prompt_version = template.version or version
        for label in (prompt_id, prompt_version):
            if not _NAME_PATTERN.match(label):
                raise StartupError(f"{path}: invalid name {label!r}; use letters, digits, '.', '_' and '-'.")
        versions = prompts.setdefault(prompt_id, {})
        if prompt_version in versions:
            raise StartupError(f"{path}: the prompt {prompt_id} already has a version {prompt_version}.")
        versions[prompt_version] = template
    return {name: dict(sorted(versions.items(), key=_version_key)) for name, versions in prompts.items()}


def find_newest(versions: Versions) -> str:
    """Return the highest version. Versions are sorted naturally: 10 comes after 9."""
    return [*versions][-1]


def _list_files(folder: Path) -> Iterator[tuple[Path, str, str]]:
    for path in sorted(folder.glob("*.toml")):
        yield path, path.stem, _DEFAULT_VERSION
    for path in sorted(folder.glob("*/*.toml")):
        yield path, path.parent.name, path.stem


def _read_file(path: Path) -> PromptTemplate:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise StartupError(f"{path} is larger than {_MAX_FILE_BYTES} bytes.")
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), PromptTemplate)
    except OSError as error:
        raise StartupError(f"{path} cannot be read: {error.strerror}.")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{path} is not valid TOML: {error}.")
    except ValidationError as error:
        raise StartupError(f"{path} is invalid: {error}.")


def _version_key(version: tuple[str, Any]) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", version[0])
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part]


_MAX_SHOWN_NAME: Final = 64  # characters of a client's name that are echoed in an error
_MAX_SHOWN_VERSIONS: Final = 10
_NO_LIBRARY = "This server has no stored prompts (--prompt-dir): send the text in `instructions` and `input`."

log = logging.getLogger(__name__)


class PromptLibrary:
    """`folder`: None if the server has no prompts."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._prompts: Mapping[str, Versions] = {} if folder is None else read_folder(folder)

    async def reload(self) -> None:
        """Read the folder again. An invalid file is logged, and nothing changes."""
        if self._folder is None:
            return
        try:
            self._prompts = await asyncio.to_thread(read_folder, self._folder)
        except StartupError as error:
            log.error("The prompts were not reloaded: %s", error)
        else:
            log.info("Prompts reloaded: %d", len(self._prompts))

    def fill(self, decoded: DecodedRequest) -> DecodedRequest:
        """Return the request with the filled prompt in front of its own input."""
        request = decoded.request
        ref = request.prompt
        assert ref is not None
        if self._folder is None:
            raise UnsupportedParameter(_NO_LIBRARY, param="prompt")
        version, template = self._find(ref)
        filling = FilledTemplate(template, ref.variables or {})
        fields = {
            "prompt": replace(ref, version=version),
            "input": [*filling.render_items(), *request.input],
            "instructions": request.instructions or filling.render_instructions(),
            "model": request.model or template.model,
        }
        present = frozenset(name for name, value in fields.items() if value)
        return replace(decoded, request=replace(request, **fields), sent=decoded.sent | present)

    def _find(self, ref: PromptRef) -> tuple[str, PromptTemplate]:
        if (versions := self._prompts.get(ref.id)) is None:
            raise UnknownPrompt(f"There is no prompt {ref.id[:_MAX_SHOWN_NAME]!r}.", param="prompt.id")
        version = find_newest(versions) if ref.version is None else ref.version
        if version not in versions:
            cut = ["…"] if len(versions) > _MAX_SHOWN_VERSIONS else []
            available = ", ".join([*islice(versions, _MAX_SHOWN_VERSIONS), *cut])
            raise UnknownPrompt(
                f"The prompt {ref.id[:_MAX_SHOWN_NAME]!r} has no version {version[:_MAX_SHOWN_NAME]!r}. "
                f"It has: {available}.",
                param="prompt.version",
            )
        return version, versions[version]
