"""What items show only to those who include it: addresses of pictures, what a search found, what code gave.

All of it is kept and told to models. `include` says what a client gets back.
"""

from collections.abc import Collection
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.protocol.items import CodeInterpreterCall, ComputerCallOutput, FileSearchCall, InputItem, Message
from antiphon.protocol.parts import InputImage, MessagePart

IMAGES: Final = "message.input_image.image_url"
SCREENSHOTS: Final = "computer_call_output.output.image_url"
RESULTS: Final = "file_search_call.results"
OUTPUTS: Final = "code_interpreter_call.outputs"
# In the JSON of an item that may show less, by the target that shows all of it; in a text the quotes would be escaped.
MARKS: Final = {
    IMAGES: b'"type":"input_image"',
    SCREENSHOTS: b'"type":"computer_screenshot"',
    RESULTS: b'"type":"file_search_call"',
    OUTPUTS: b'"type":"code_interpreter_call"',
}


def hides(body: bytes, include: Collection[str]) -> bool:
    """Is there anything that was not asked for?"""
    return any(mark in body and target not in include for target, mark in MARKS.items())


def within(item: InputItem, include: Collection[str]) -> InputItem:
    match item:
        case Message(content=content) if IMAGES not in include and InputImage in map(type, content):
            return replace(item, content=[*map(_without_address, content)])
        case ComputerCallOutput(output=output) if SCREENSHOTS not in include:
            return replace(item, output=replace(output, image_url=UNSET))
        case FileSearchCall() if RESULTS not in include:
            return replace(item, results=None)
        case CodeInterpreterCall() if OUTPUTS not in include:
            return replace(item, outputs=None)
    return item


def _without_address(part: MessagePart) -> MessagePart:
    return replace(part, image_url=UNSET) if isinstance(part, InputImage) else part
