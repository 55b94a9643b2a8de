"""A template and what it is filled with → instructions and items. `{{name}}` is where a variable stands.

One pass over the operator's text, made when it is read: what a variable says is never looked at for names. Pictures and
files have their place in a user's message, as parts between the texts.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct

from antiphon.errors import InvalidValue, MissingParameter
from antiphon.protocol.types.items import InputItem, Message, MessagePart
from antiphon.protocol.types.parts import InputFile, InputImage, InputText, OutputText

Value = str | InputText | InputImage | InputFile
Piece = tuple[bool, str]  # whether it is the name of a variable

_NAME = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_.-]{0,63})\s*\}\}")


class TemplateMessage(Struct, frozen=True, kw_only=True):
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: tuple[Piece, ...] = ()


class Template(Struct, frozen=True, kw_only=True):
    instructions: tuple[Piece, ...] = ()
    messages: tuple[TemplateMessage, ...] = ()
    model: str | None = None  # of requests that name none

    @property
    def names(self) -> dict[str, None]:
        """Of its variables, each once, in their order."""
        texts = [self.instructions, *[message.content for message in self.messages]]
        return dict.fromkeys(text for pieces in texts for is_name, text in pieces if is_name)


def pieces(text: str) -> tuple[Piece, ...]:
    """What is between the names, and the names."""
    found = [(bool(number % 2), part) for number, part in enumerate(_NAME.split(text))]
    return tuple(piece for piece in found if piece[1])


class Filling:
    """Raises InvalidValue for a variable that the template does not have, MissingParameter for one that is missing."""

    def __init__(self, template: Template, variables: Mapping[str, Value]) -> None:
        self._template = template
        self._variables = variables
        names = template.names
        for name in variables:
            if name not in names:
                known = ", ".join(names) or "none"
                raise InvalidValue(
                    f"This prompt has no variable {name[:64]!r}. It has: {known}.",
                    param=f"prompt.variables.{name[:64]}",
                )
        for name in names:
            if name not in variables:
                param = f"prompt.variables.{name}"
                raise MissingParameter(f"Missing required parameter: '{param}'.", param=param)

    def instructions(self) -> str | None:
        return "".join([self._text(piece) for piece in self._template.instructions]) or None

    def items(self) -> list[InputItem]:
        return [Message(role=one.role, content=[*self._parts(one)]) for one in self._template.messages]

    def _parts(self, message: TemplateMessage) -> Iterator[MessagePart]:
        if message.role != "user":
            text = "".join([self._text(piece) for piece in message.content])
            yield OutputText(text=text) if message.role == "assistant" else InputText(text=text)
            return
        texts: list[str] = []
        for piece in message.content:
            value = self._value(piece)
            if isinstance(value, InputImage | InputFile):
                if texts:
                    yield InputText(text="".join(texts))
                    texts = []
                yield value
            else:
                texts.append(_plain(value))
        if texts:
            yield InputText(text="".join(texts))

    def _value(self, piece: Piece) -> Value:
        is_name, text = piece
        return self._variables[text] if is_name else text

    def _text(self, piece: Piece) -> str:
        value = self._value(piece)
        if isinstance(value, InputImage | InputFile):
            raise InvalidValue(
                f"The variable {piece[1]!r} stands where only text can be.", param=f"prompt.variables.{piece[1]}"
            )
        return _plain(value)


def _plain(value: str | InputText) -> str:
    return value if isinstance(value, str) else value.text
