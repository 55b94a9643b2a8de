"""Settings of the engines that are part of the server: llama.cpp, and the one that only plays."""

from pathlib import Path
from typing import Annotated

from antiphon.config.areas.tools import ToolSettings
from antiphon.config.help_text import FAKE, LLAMACPP
from antiphon.config.value_types import Amount, Count, Interval, Level, Rate


class EmbeddedSettings(ToolSettings, frozen=True, kw_only=True):
    context: Annotated[
        Count | None, LLAMACPP("Tokens of prompt and answer together, for each slot.", "the model's, at most 8192")
    ] = None
    gpu_layers: Annotated[Amount | None, LLAMACPP("Layers of the model to put on the GPU.", "all that fit")] = None
    threads: Annotated[Count | None, LLAMACPP("Threads for a model.", "one for each core")] = None
    slots: Annotated[Count | None, LLAMACPP("Responses that one model generates at once.", "4")] = None
    batch_size: Annotated[
        Count | None,
        LLAMACPP("Prompt tokens computed at a time; larger is slower to cancel.", "what takes less than half a second"),
    ] = None
    max_loaded_models: Annotated[Count, LLAMACPP("Models in memory; the least recently used makes room.")] = 2

    fake_level: Annotated[Level, FAKE("Level of the prompts it takes and the chunks it gives.")] = "chat"
    fake_script: Annotated[Path | None, FAKE("TOML file with the exact chunks, delays and errors to play.", "none")] = (
        None
    )
    fake_tokens: Annotated[Count | None, FAKE("Tokens of every answer, to make load.", "it says «You said: …»")] = None
    fake_rate: Annotated[Rate | None, FAKE("Tokens per second of each answer.", "as fast as can be")] = None
    fake_delay: Annotated[Interval, FAKE("Seconds before the first token of each answer.")] = 0.0
    fake_joined: Annotated[Count, FAKE("Tokens that arrive together.")] = 1
    fake_burst: Annotated[Count, FAKE("Arrivals until other streams get their turn; 1 gives each its own.")] = 16
