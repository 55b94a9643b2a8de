"""What a prompt shows and render cannot make by itself: pictures and files, which have to be fetched, vetted or read.

    render ── wanted ──▶ service/attachments/attachments.py ── found ──▶ render, once more

What is not there yet is noted and shown as nothing. A prompt is whole only if nothing is wanted any more.
"""

from msgspec import Struct


class ImageSource(Struct, frozen=True):
    url: str


class FileSource(Struct, frozen=True):
    name: str = ""
    data: str = ""
    url: str | None = None  # instead of the data


Source = ImageSource | FileSource


class Wish(Struct):
    param: str  # the field of the request that it came by
    times: int = 0  # how often it is shown


class Attached(Struct, eq=False):
    found: dict[Source, str] = {}  # a picture as a data URL, a file as text
    wanted: dict[Source, Wish] = {}

    def show(self, source: Source, param: str) -> str:
        found = self.found.get(source)
        if found is None:
            self.wanted.setdefault(source, Wish(param)).times += 1
            return ""
        return found
