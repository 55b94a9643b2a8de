"""Prompt templates: a template and its variables → instructions and input items. `{{name}}` marks a variable.

The operator's text is split once, when it is loaded: variable values are never scanned for names. Images and files
become parts of a user message, between its texts.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

from antiphon.errors import InvalidValue, MissingParameter
from antiphon.protocol.types.items import InputItem, Message, MessagePart
from antiphon.protocol.types.parts import InputFile, InputImage, InputText, OutputText

VariableValue = str | InputText | InputImage | InputFile
TemplatePiece = tuple[bool, str]  # (is a variable name, text)

_NAME = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_.-]{0,63})\s*\}\}")


class TemplateMessage(Struct, frozen=True, kw_only=True):
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: tuple[TemplatePiece, ...] = ()


class PromptTemplate(Struct, frozen=True, kw_only=True):
    instructions: tuple[TemplatePiece, ...] = ()
    messages: tuple[TemplateMessage, ...] = ()
    model: str | None = None  # for requests that name no model

    @property
    def variable_names(self) -> dict[str, None]:
        """Names of the variables, each once, in order of appearance."""
        texts = [self.instructions, *[message.content for message in self.messages]]
        return dict.fromkeys(text for pieces in texts for is_name, text in pieces if is_name)


def split_template(text: str) -> tuple[TemplatePiece, ...]:
    """Split a text into literal pieces and variable names."""
    found = [(bool(number % 2), part) for number, part in enumerate(_NAME.split(text))]
    return tuple(piece for piece in found if piece[1])


class FilledTemplate:
    """A template with values for its variables.

    Raises InvalidValue for a variable that the template does not have and MissingParameter for a missing one.
    """

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
        return "".join([self._render_text(piece) for piece in self._template.instructions]) or None

    def render_items(self) -> list[InputItem]:
        return [Message(role=one.role, content=[*self._render_parts(one)]) for one in self._template.messages]

    def _render_parts(self, message: TemplateMessage) -> Iterator[MessagePart]:
        if message.role != "user":
            text = "".join([self._render_text(piece) for piece in message.content])
            yield OutputText(text=text) if message.role == "assistant" else InputText(text=text)
            return
        texts: list[str] = []
        for piece in message.content:
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
