"""The blocks of Anthropic's messages → items, in their order, and where each of them came from.

text, image, document, search_result     parts of one message, as long as nothing else comes between them
thinking                                 a reasoning item
tool_use, tool_result                    a call, its output

The signature of a thinking block that is shown: a checksum of its text, behind a name by which we know it again.

It is no secret and no proof: it only shows that a block comes back as it went out. Clients of Anthropic's API expect
one and send it back. A block that was signed elsewhere is taken for what it says.
"""

import json
import re
from hashlib import blake2b
from typing import Final, assert_never

from antiphon.core.dialects.param_names import Place
from antiphon.core.encrypted_reasoning import is_ours
from antiphon.core.media.documents import clean_name, fenced
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.protocol.types.anthropic.request import (
    Base64Source,
    Citations,
    ContentSource,
    DocumentBlock,
    FileSource,
    ImageBlock,
    InputBlock,
    InputMessage,
    RedactedThinkingBlock,
    ResultBlock,
    SearchResultBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)
from antiphon.protocol.types.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputItem,
    InputText,
    Message,
    MessagePart,
    OutputText,
    Reasoning,
    ReasoningText,
    Role,
    ToolOutputPart,
)

_OURS = "antiphon-1-"


def sign(thought: str) -> str:
    digest = blake2b(thought.encode("utf-8", "surrogatepass"), digest_size=24, person=b"antiphon-thought")
    return _OURS + digest.hexdigest()


def was_changed(thought: str, signature: str) -> bool:
    """Did we sign something else?"""
    return signature.startswith(_OURS) and signature != sign(thought)


IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
FAILED: Final = "[The tool failed.]"  # in front of what a tool_result with is_error says

_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
_BELONG: Final[dict[str, tuple[type, ...]]] = {
    "user": (TextBlock, ImageBlock, DocumentBlock, SearchResultBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
    "system": (TextBlock,),
}


class Items:
    def __init__(self) -> None:
        self.items: list[InputItem] = []
        self.places: list[Place] = []
        self.ignored: list[str] = []  # blocks that say nothing here
        self._parts: list[MessagePart] = []  # of the message that is open
        self._origins: list[str] = []

    def take(self, message: InputMessage, at: str) -> None:
        if not message.content:  # as good as an empty text
            self._add(Message(role=message.role, content=[]), Place(at))
        for number, block in enumerate(message.content):
            where = f"{at}.content[{number}]"
            if not isinstance(block, _BELONG[message.role]):
                raise _misplaced(message.role, block, where)
            if message.role == "assistant" and isinstance(block, TextBlock):
                self._say([OutputText(text=block.text)], where)
            elif isinstance(block, ResultBlock):
                self._say([*parts_of(block, where)], where)
            else:
                self._close(message.role, at)
                self._take(block, where)
        self._close(message.role, at)

    def _take(self, block: ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock, where: str) -> None:
        match block:
            case ThinkingBlock():
                self._think(block, where)
            case RedactedThinkingBlock():
                self.ignored.append(where)  # nobody here can read it
            case ToolUseBlock(id=call_id, name=name, input=given):
                arguments = json.dumps(given, ensure_ascii=False)  # as models write it
                self._add(FunctionCall(call_id=call_id, name=name, arguments=arguments), Place(where, (), ".id"))
            case ToolResultBlock():
                self._return(block, where)
            case _:
                assert_never(block)

    def _say(self, parts: list[MessagePart], where: str) -> None:
        self._parts += parts
        self._origins += [where] * len(parts)

    def _close(self, role: Role, at: str) -> None:
        if self._parts:
            self._add(Message(role=role, content=self._parts), Place(at, self._origins))
            self._parts, self._origins = [], []

    def _think(self, block: ThinkingBlock, where: str) -> None:
        if is_ours(block.signature):  # of a thought that was not shown
            self._add(Reasoning(encrypted_content=block.signature), Place(where))
            return
        if was_changed(block.thinking, block.signature):
            raise InvalidValue(
                "The thinking block was changed: send it back as it came, or without its signature.", param=where
            )
        if block.thinking:
            self._add(Reasoning(content=[ReasoningText(text=block.thinking)]), Place(where))

    def _return(self, block: ToolResultBlock, where: str) -> None:
        output: str | list[ToolOutputPart]
        origins: list[str] = []
        if isinstance(block.content, str):
            output = f"{FAILED}\n{block.content}" if block.is_error else block.content
        else:
            output = [InputText(text=FAILED + "\n")] if block.is_error else []
            origins = [where] * len(output)
            for number, inner in enumerate(block.content):
                found = parts_of(inner, f"{where}.content[{number}]")
                output += found
                origins += [f"{where}.content[{number}]"] * len(found)
        self._add(FunctionCallOutput(call_id=block.tool_use_id, output=output), Place(where, origins))

    def _add(self, item: InputItem, place: Place) -> None:
        self.items.append(item)
        self.places.append(place)


def parts_of(block: ResultBlock, where: str) -> list[ToolOutputPart]:
    match block:
        case TextBlock(text=text):
            return [InputText(text=text)]
        case ImageBlock():
            return [_image(block, where)]
        case DocumentBlock():
            _refuse_citations(block.citations, where)
            return _document(block, where)
        case SearchResultBlock():
            _refuse_citations(block.citations, where)
            texts = [block.title, block.source, *[inner.text for inner in block.content]]
            return [InputText(text="\n".join([text for text in texts if text]))]
        case _:
            assert_never(block)


def _image(block: ImageBlock, where: str) -> InputImage:
    match block.source:
        case Base64Source(media_type=kind, data=data):
            if kind not in IMAGES:
                raise InvalidValue(
                    f"Invalid value for '{where}.source.media_type': {kind[:64]!r} is not one of {', '.join(IMAGES)}.",
                    param=f"{where}.source.media_type",
                )
            return InputImage(image_url=f"data:{kind};base64,{data}")
        case UrlSource(url=url):
            return InputImage(image_url=url)
        case FileSource(file_id=file_id):
            return InputImage(file_id=file_id)
        case _:
            assert_never(block.source)


def _document(block: DocumentBlock, where: str) -> list[ToolOutputPart]:
    """Text stands in the prompt as that of any file does."""
    head: list[ToolOutputPart] = [InputText(text=block.context)] if block.context else []
    match block.source:
        case TextSource(data=text) | ContentSource(content=str(text)):
            return [*head, InputText(text=fenced(clean_name(block.title or "document"), text))]
        case ContentSource(content=list(blocks)):
            titled = [InputText(text=block.title)] if block.title else []
            return [*head, *titled, *[part for inner in blocks for part in parts_of(inner, where)]]
        case Base64Source(media_type=kind, data=data):
            if not _MEDIA_TYPE.fullmatch(kind):
                raise InvalidValue("This is no media type.", param=f"{where}.source.media_type")
            file = InputFile(file_data=f"data:{kind};base64,{data}")
        case UrlSource(url=url):
            file = InputFile(file_url=url)
        case FileSource(file_id=file_id):
            file = InputFile(file_id=file_id)
        case _:
            raise AssertionError(block.source)
    if block.title:
        file.filename = block.title
    return [*head, file]


def _refuse_citations(wanted: Citations | None, where: str) -> None:
    if wanted is not None and wanted.enabled:
        raise UnsupportedParameter("This server's models do not cite.", param=f"{where}.citations")


def _misplaced(role: str, block: InputBlock, where: str) -> InvalidValue:
    kind = str(block.__struct_config__.tag)
    return InvalidValue(f"Blocks of the type {kind!r} do not belong into a message of the role {role!r}.", param=where)
