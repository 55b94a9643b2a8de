"""llama.cpp's own server.

It looks for a client that hung up only when it has something to send: progress on the prompt makes it look.
It cannot be told to forget what waits in its queue, so no more is sent than it has slots for.
"""

from typing import ClassVar

from msgspec import Struct, field
from msgspec.json import Decoder
from msgspec.structs import replace

from antiphon.core.prompt import Json
from antiphon.engines.client import Refused
from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.watch import Probe


class Modalities(Struct):
    vision: bool = False


class Props(Struct):
    total_slots: int | None = None
    build_info: str | None = None
    modalities: Modalities = field(default_factory=Modalities)


PROPS = Decoder(Props)


class LlamaCppServer(HttpEngine):
    name = "llamacpp-server"
    port = 8080
    counting_path = "/v1/chat/completions/input_tokens"
    fixed: ClassVar[Json] = {"return_progress": True}

    async def probe(self) -> Probe:
        found, props = await super().probe(), await self._props()
        slots = props.total_slots if props.total_slots and props.total_slots > 0 else None
        return replace(found, version=props.build_info, slots=slots, blind=not props.modalities.vision)

    async def _props(self) -> Props:
        try:
            return await self._asking.get(f"{self._root}/props", PROPS)
        except Refused:
            return Props()
