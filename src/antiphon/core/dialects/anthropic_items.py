"""Blocks of Anthropic's messages → items in the same order, and the position from which each came.

text, image, document, search_result     parts of one message while no other block is between them
thinking                                 a reasoning item
tool_use, tool_result                    a call, its output

The signature of a shown thinking block is a checksum of its text with a prefix that identifies this server. It is not
secret and proves nothing: it only shows that a block comes back unmodified. Clients of Anthropic's API expect a
signature and send it back. Blocks signed by other servers are accepted unchecked.
"""

import json
import re
from hashlib import blake2b
from typing import Final, assert_never

from antiphon.core.dialects.translation import SourcePosition, TranslatedItems
from antiphon.core.documents import clean_name, fence_text
from antiphon.core.encrypted_reasoning import is_own_ciphertext
from antiphon.errors import InvalidValue, UnsupportedParameter, invalid_value
from antiphon.protocol.types import parts as pt
from antiphon.protocol.types.anthropic import request as wire
from antiphon.protocol.types.items import FunctionCall, FunctionCallOutput, Message, Reasoning, Role

_SIGNATURE_PREFIX = "antiphon-1-"


def sign_thinking(thinking: str) -> str:
    digest = blake2b(thinking.encode("utf-8", "surrogatepass"), digest_size=24, person=b"antiphon-thought")
    return _SIGNATURE_PREFIX + digest.hexdigest()


def is_modified(thinking: str, signature: str) -> bool:
    """Check whether this server signed a different text."""
    return signature.startswith(_SIGNATURE_PREFIX) and signature != sign_thinking(thinking)


IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
TOOL_FAILED: Final = "[The tool failed.]"  # precedes the content of a tool_result with is_error

_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
_ALLOWED_BLOCKS: Final[dict[str, tuple[type, ...]]] = {
    "user": (wire.TextBlock, wire.ImageBlock, wire.DocumentBlock, wire.SearchResultBlock, wire.ToolResultBlock),
    "assistant": (wire.TextBlock, wire.ThinkingBlock, wire.RedactedThinkingBlock, wire.ToolUseBlock),
    "system": (wire.TextBlock,),
}


class AnthropicItems(TranslatedItems):
    def __init__(self) -> None:
        super().__init__()
        self._parts: list[pt.MessagePart] = []  # of the open message
        self._origins: list[str] = []

    def add_message(self, message: wire.InputMessage, path: str) -> None:
        if not message.content:  # equivalent to an empty text
            self.add(Message(role=message.role, content=[]), SourcePosition(path))
        for number, block in enumerate(message.content):
            block_path = f"{path}.content[{number}]"
            if not isinstance(block, _ALLOWED_BLOCKS[message.role]):
                raise _misplaced_block(message.role, block, block_path)
            if message.role == "assistant" and isinstance(block, wire.TextBlock):
                self._add_parts([pt.OutputText(text=block.text)], block_path)
            elif isinstance(block, wire.ResultBlock):
                self._add_parts([*to_parts(block, block_path)], block_path)
            else:
                self._close(message.role, path)
                self._add_block(block, block_path)
        self._close(message.role, path)

    def _add_block(
        self,
        block: wire.ThinkingBlock | wire.RedactedThinkingBlock | wire.ToolUseBlock | wire.ToolResultBlock,
        path: str,
    ) -> None:
        match block:
            case wire.ThinkingBlock():
                self._add_thinking(block, path)
            case wire.RedactedThinkingBlock():
                self.ignored.append(path)  # encrypted by Anthropic, unreadable here
            case wire.ToolUseBlock(id=call_id, name=name, input=tool_input):
                arguments = json.dumps(tool_input, ensure_ascii=False)  # formatted as models write it
                self.add(FunctionCall(call_id=call_id, name=name, arguments=arguments), SourcePosition(path, (), ".id"))
            case wire.ToolResultBlock():
                self._add_tool_result(block, path)
            case _:
                assert_never(block)

    def _add_parts(self, parts: list[pt.MessagePart], path: str) -> None:
        self._parts += parts
        self._origins += [path] * len(parts)

    def _close(self, role: Role, path: str) -> None:
        if self._parts:
            self.add(Message(role=role, content=self._parts), SourcePosition(path, self._origins))
            self._parts, self._origins = [], []

    def _add_thinking(self, block: wire.ThinkingBlock, path: str) -> None:
        if is_own_ciphertext(block.signature):  # thinking that was not shown
            self.add(Reasoning(encrypted_content=block.signature), SourcePosition(path))
            return
        if is_modified(block.thinking, block.signature):
            raise InvalidValue(
                "The thinking block was modified: send it back unchanged, or without its signature.", param=path
            )
        if block.thinking:
            self.add(Reasoning(content=[pt.ReasoningText(text=block.thinking)]), SourcePosition(path))

    def _add_tool_result(self, block: wire.ToolResultBlock, path: str) -> None:
        output: str | list[pt.ToolOutputPart]
        origins: list[str] = []
        if isinstance(block.content, str):
            output = f"{TOOL_FAILED}\n{block.content}" if block.is_error else block.content
        else:
            output = [pt.InputText(text=TOOL_FAILED + "\n")] if block.is_error else []
            origins = [path] * len(output)
            for number, inner in enumerate(block.content):
                found = to_parts(inner, f"{path}.content[{number}]")
                output += found
                origins += [f"{path}.content[{number}]"] * len(found)
        self.add(FunctionCallOutput(call_id=block.tool_use_id, output=output), SourcePosition(path, origins))


def to_parts(block: wire.ResultBlock, path: str) -> list[pt.ToolOutputPart]:
    match block:
        case wire.TextBlock(text=text):
            return [pt.InputText(text=text)]
        case wire.ImageBlock():
            return [_to_image(block, path)]
        case wire.DocumentBlock():
            _reject_citations(block.citations, path)
            return _to_document(block, path)
        case wire.SearchResultBlock():
            _reject_citations(block.citations, path)
            texts = [block.title, block.source, *[inner.text for inner in block.content]]
            return [pt.InputText(text="\n".join([text for text in texts if text]))]
        case _:
            assert_never(block)


def _to_image(block: wire.ImageBlock, path: str) -> pt.InputImage:
    match block.source:
        case wire.Base64Source(media_type=kind) as source:
            if kind not in IMAGE_TYPES:
                raise invalid_value(
                    f"{path}.source.media_type", f"{kind[:64]!r} is not one of {', '.join(IMAGE_TYPES)}"
                )
            return pt.InputImage(image_url=_take_data_url(source))
        case wire.UrlSource(url=url):
            return pt.InputImage(image_url=url)
        case wire.FileSource(file_id=file_id):
            return pt.InputImage(file_id=file_id)
        case _:
            assert_never(block.source)


def _to_document(block: wire.DocumentBlock, path: str) -> list[pt.ToolOutputPart]:
    """Convert a document. Plain text is fenced like the text of any file."""
    head: list[pt.ToolOutputPart] = [pt.InputText(text=block.context)] if block.context else []
    match block.source:
        case wire.TextSource(data=text) | wire.ContentSource(content=str(text)):
            return [*head, pt.InputText(text=fence_text(clean_name(block.title or "document"), text))]
        case wire.ContentSource(content=list(blocks)):
            titled = [pt.InputText(text=block.title)] if block.title else []
            return [*head, *titled, *[part for inner in blocks for part in to_parts(inner, path)]]
        case wire.Base64Source(media_type=kind) as source:
            if not _MEDIA_TYPE.fullmatch(kind):
                raise InvalidValue("Invalid media type.", param=f"{path}.source.media_type")
            file = pt.InputFile(file_data=_take_data_url(source))
        case wire.UrlSource(url=url):
            file = pt.InputFile(file_url=url)
        case wire.FileSource(file_id=file_id):
            file = pt.InputFile(file_id=file_id)
        case _:
            raise AssertionError(block.source)
    if block.title:
        file.filename = block.title
    return [*head, file]


def _take_data_url(source: wire.Base64Source) -> str:
    """Return the data as a URL and remove it from the source: all files of a request would be held twice."""
    url = f"data:{source.media_type};base64,{source.data}"
    source.data = ""
    return url


def _reject_citations(citations: wire.Citations | None, path: str) -> None:
    if citations is not None and citations.enabled:
        raise UnsupportedParameter("Citations are not supported by this server.", param=f"{path}.citations")


def _misplaced_block(role: str, block: wire.InputBlock, path: str) -> InvalidValue:
    kind = str(block.__struct_config__.tag)
    return InvalidValue(f"Blocks of the type {kind!r} are not allowed in a message of the role {role!r}.", param=path)
