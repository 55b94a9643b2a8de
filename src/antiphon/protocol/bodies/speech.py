"""The body of POST /audio/speech. All fields of OpenAI's API are passed on to the engine."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from antiphon.protocol.decoding.codec import RequestDecoder, encode

AudioFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]

MEDIA_TYPES: Final[dict[AudioFormat, str]] = {
    "mp3": "audio/mpeg",
    "opus": "audio/opus",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
EVENT_STREAM: Final = "text/event-stream"


class VoiceId(Struct, kw_only=True):
    id: str


class CreateSpeech(Struct, kw_only=True):
    model: str
    input: Annotated[str, Meta(min_length=1, max_length=4096)]
    voice: Annotated[str, Meta(min_length=1, max_length=256)] | VoiceId
    instructions: Annotated[str, Meta(max_length=4096)] | UnsetType = UNSET
    response_format: AudioFormat = "mp3"  # always sent, since engines have other defaults
    speed: Annotated[float, Meta(ge=0.25, le=4)] | UnsetType = UNSET
    stream_format: Literal["sse", "audio"] | UnsetType = UNSET

    @property
    def media_type(self) -> str:
        return EVENT_STREAM if self.stream_format == "sse" else MEDIA_TYPES[self.response_format]

    def encode_for_model(self, model: str) -> bytes:
        return encode(replace(self, model=model))


decode_speech = RequestDecoder(CreateSpeech).decode_body  # unknown fields are not passed on: some name URLs to fetch
