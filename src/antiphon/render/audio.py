"""Audio parts: whether the data is base64 and begins like a file of the declared format. No sample is decoded."""

import re
from typing import Final

from antiphon.core.data_urls import UnreadableMedia, check_base64, read_base64

_HEAD_CHARS: Final = 64  # a multiple of 4; they hold the first 48 bytes
_HEADS: Final = {
    "wav": re.compile(rb"(RIFF|RF64)....WAVE", re.DOTALL),
    "mp3": re.compile(rb"ID3|\xff[\xe2-\xef\xf2-\xff]"),  # a tag, or the sync of a frame (ISO/IEC 11172-3 §2.4.1.3)
}


def check_audio(data: str, audio_format: str) -> None:
    """Raise UnreadableMedia unless the data is base64 and begins like a file of this format."""
    if not _HEADS[audio_format].match(read_base64(data[:_HEAD_CHARS], _HEAD_CHARS).body):
        raise UnreadableMedia(f"It is not a {audio_format} file.")
    check_base64(data)
