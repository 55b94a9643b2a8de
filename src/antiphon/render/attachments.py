"""Images and files of a prompt, which render cannot produce itself: they must be fetched, checked or parsed first.

    render ── missing ──▶ service/attachments/attachments.py ── found ──▶ render again

Attachments that are not available yet are recorded in `missing` and rendered as an empty string. A prompt is complete
only if nothing is missing.
"""

from msgspec import Struct


class ImageAttachment(Struct, frozen=True):
    url: str


class FileAttachment(Struct, frozen=True):
    name: str = ""
    data: str = ""
    url: str | None = None  # set instead of `data`


AttachmentSource = ImageAttachment | FileAttachment


class AttachmentRequest(Struct):
    """An attachment that must be resolved before the prompt can be rendered."""

    param: str  # request field that holds the attachment
    uses: int = 0  # number of occurrences in the prompt


class AttachmentLookup(Struct, eq=False):
    """Resolved attachments of one prompt, and those that are still missing."""

    found: dict[AttachmentSource, str] = {}  # images as data URLs, files as text
    missing: dict[AttachmentSource, AttachmentRequest] = {}

    def resolve(self, source: AttachmentSource, param: str) -> str:
        """Return the resolved content; record the source as missing and return "" if there is none yet."""
        found = self.found.get(source)
        if found is None:
            self.missing.setdefault(source, AttachmentRequest(param)).uses += 1
            return ""
        return found
