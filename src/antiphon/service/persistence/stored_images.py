"""Images that responses have made, outside of their JSON: written to the content store, and joined when they are read.

    end of a response ── offload ──▶ contents, then a row with references ── join ──▶ what clients receive

A row has a reference in place of each image, and so has its log in place of each preview. The rows of responses and
conversations that refer to an image keep it; content without a row is swept (`FileSweeper`). History is loaded with the
references, and prompts load only the images that they show.
"""

from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Sequence
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.core.deltas import ImagePreview, ServerItemDone
from antiphon.core.emitter.event_log import LogEntry
from antiphon.core.image_generation import IMAGE_MARK, RESULT_FIELD, StoredImage, parse_image_reference
from antiphon.ids import new_dashed_id
from antiphon.offload import run_sized
from antiphon.protocol.types.items import ImageGenerationCall, OutputItem
from antiphon.protocol.types.response import Response
from antiphon.stores.contents.base import ContentStore, yield_once
from antiphon.stores.sql.store import Store

Log = Sequence[Sequence[LogEntry]]
References = dict[str, StoredImage]  # by the base64 of the image


IMAGE_ENTRIES = frozenset({ImagePreview, ServerItemDone})  # entries of a log that may have images


def has_images(response: Response) -> bool:
    return ImageGenerationCall in map(type, response.output)


class StoredImages:
    def __init__(self, store: Store, contents: ContentStore) -> None:
        self._store = store
        self._contents = contents

    async def offload(self, response: Response, log: Log, written: References) -> tuple[Response, Log]:
        """Write the images of a response, and return it and its log with references. `written` collects those."""
        texts = [item.result for item in response.output if isinstance(item, ImageGenerationCall)]
        previews = [entry.data for part in log for entry in part if type(entry) is ImagePreview]
        for text in (*texts, *previews):
            if text and text not in written and parse_image_reference(text) is None:
                written[text] = await self._write(text)
        output = [_refer(item, written) for item in response.output]
        return replace(response, output=output), [_refer_entries(part, written) for part in log]

    async def join(self, tenant: str, body: bytes) -> bytes:
        """Return JSON with the images in place of the references; null if one is gone."""
        if IMAGE_MARK not in body:
            return body
        pieces, end = [], 0
        for found in RESULT_FIELD.finditer(body):
            image = await self.load(tenant, StoredImage(found[1].decode(), int(found[2])))
            data = b"null" if image is None else await run_sized(len(image), _quote, image)
            pieces += [body[end : found.start()], data]
            end = found.end()
        return b"".join([*pieces, body[end:]])

    async def load(self, tenant: str, reference: StoredImage) -> bytes | None:
        """Return the image; None if the tenant has no such image."""
        if not await self._store.has_image(tenant, reference.key):
            return None
        async with aclosing(self._contents.read(reference.key, 0, reference.size)) as pieces:
            return b"".join([piece async for piece in pieces])

    async def list_held(self, tenant: str, holder: str) -> list[str]:
        return await self._store.list_images(tenant, holder)

    async def delete_unused(self, keys: Sequence[str]) -> None:
        """Delete those of the images that no item refers to any more."""
        if keys and (unused := await self._store.find_unused(*keys)):
            await self._contents.delete(unused)

    async def _write(self, text: str) -> StoredImage:
        body = await run_sized(len(text), a2b_base64, text)
        reference = StoredImage(new_dashed_id("file"), len(body))
        await self._contents.write(reference.key, yield_once(body))
        return reference

    async def join_entry(self, tenant: str, entry: LogEntry) -> LogEntry:
        match entry:
            case ImagePreview(data=data):
                return replace(entry, data=await self._load_text(tenant, data) or "")
            case ServerItemDone(item=ImageGenerationCall(result=str(result)) as item):
                return replace(entry, item=replace(item, result=await self._load_text(tenant, result)))
        return entry

    async def _load_text(self, tenant: str, text: str) -> str | None:
        """Return the base64 of the image to which a text refers, or the text if it is the image itself."""
        if (reference := parse_image_reference(text)) is None:
            return text
        image = await self.load(tenant, reference)
        return None if image is None else (await run_sized(len(image), b64encode, image)).decode("ascii")


async def join_images(images: StoredImages | None, tenant: str, body: bytes) -> bytes:
    """Return the JSON of a row as clients receive it. `images`: None if they are stored in the rows."""
    return body if images is None else await images.join(tenant, body)


def _quote(image: bytes) -> bytes:
    return b'"%b"' % b64encode(image)


def _refer(item: OutputItem, written: References) -> OutputItem:
    if isinstance(item, ImageGenerationCall) and item.result in written:
        return replace(item, result=str(written[item.result]))
    return item


def _refer_entries(entries: Sequence[LogEntry], written: References) -> Sequence[LogEntry]:
    if not any(type(entry) is ImagePreview for entry in entries):
        return entries
    return [
        replace(entry, data=str(written[entry.data])) if type(entry) is ImagePreview else entry for entry in entries
    ]
