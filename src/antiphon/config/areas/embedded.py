"""Settings of the engines that run inside the server: llama.cpp, and the fake engine for tests."""

from pathlib import Path
from typing import Annotated

from msgspec import Struct

from antiphon.config.help_text import FAKE, LLAMACPP
from antiphon.config.value_types import Amount, Count, Interval, Level, Rate


class EmbeddedSettings(Struct, frozen=True, kw_only=True):
    """The engines llamacpp and fake. Other engines have their own server."""

    context: Annotated[
        Count | None,
        LLAMACPP(
            "Context size of each slot in tokens, for prompt and output together.", "that of the model, at most 8192"
        ),
    ] = None
    gpu_layers: Annotated[Amount | None, LLAMACPP("Number of model layers to offload to the GPU.", "all that fit")] = (
        None
    )
    threads: Annotated[Count | None, LLAMACPP("Number of CPU threads per model.", "one per core")] = None
    slots: Annotated[Count | None, LLAMACPP("Number of responses that one model generates concurrently.", "4")] = None
    batch_size: Annotated[
        Count | None,
        LLAMACPP(
            "Prompt tokens processed per batch; larger batches delay cancellation.",
            "as many as take less than half a second",
        ),
    ] = None
    max_loaded_models: Annotated[
        Count, LLAMACPP("Maximum number of models in memory; the least recently used one is unloaded.")
    ] = 2

    fake_level: Annotated[Level, FAKE("Level of the prompts it accepts and of the chunks it returns.")] = "chat"
    fake_script: Annotated[
        Path | None, FAKE("TOML file with the exact chunks, delays and errors to return.", "none")
    ] = None
    fake_tokens: Annotated[
        Count | None, FAKE("Number of tokens of every response, for load tests.", "it echoes «You said: …»")
    ] = None
    fake_rate: Annotated[Rate | None, FAKE("Tokens per second of each response.", "unlimited")] = None
    fake_delay: Annotated[Interval, FAKE("Delay before the first token of each response, in seconds.")] = 0.0
    fake_joined: Annotated[Count, FAKE("Number of tokens per chunk.")] = 1
    fake_burst: Annotated[
        Count, FAKE("Chunks sent before the task yields to other streams; 1 yields after every chunk.")
    ] = 16
