"""Settings of models and engines: what is served, under which names, and the time limits of generation."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct, field

from antiphon.config.engines import EngineSpec, ModelSpec, SharedEngineSettings, complete_specs
from antiphon.config.help_text import DEADLINES, MODEL
from antiphon.config.value_types import Amount, Count, Key, Name, Pair, Seconds
from antiphon.config.xdg import cache_home
from antiphon.errors import StartupError


class InferenceSettings(Struct, frozen=True, kw_only=True):
    """Models, engines, and the time limits of generation."""

    model: Annotated[
        tuple[Name, ...],
        MODEL(
            "A GGUF file or the name of a known model; ID=FILE sets its name. For a remote engine: a model to serve.",
            "the built-in model; all models of a remote engine",
        ),
    ] = ()
    engine: Annotated[
        Name | tuple[Name, ...],
        MODEL(
            "Inference engine: llamacpp (embedded), a server (vllm, sglang, ovms, llamacpp-server, ollama or openai, as"
            " NAME://HOST:PORT; NAME+https:// with TLS), or fake (no model, for tests). Several engines share the load."
        ),
    ] = "llamacpp"
    engine_key: Annotated[
        Name | tuple[Key, ...] | None,  # not Key | tuple: patterns in a union with lists corrupt memory in msgspec 0.22
        MODEL(
            "API key of the engine, sent to it only; with several engines, HOST:PORT=KEY selects the engine.",
            "none",
        ),
    ] = None
    engine_slots: Annotated[
        Count | None,
        MODEL("Maximum number of concurrent requests to each remote engine.", "as reported by the engine, else 1024"),
    ] = None
    engine_level: Annotated[
        Literal["chat", "tokens"],
        MODEL(
            "Form of requests to a remote engine: chat messages, or token ids (vllm, sglang, llamacpp-server), whose"
            " output the server parses."
        ),
    ] = "chat"
    allow_control_strings: Annotated[
        bool,
        MODEL(
            "Pass texts of clients, tools and files to a remote engine unchanged, although it may convert strings"
            " in them to control tokens. Otherwise such strings are broken up (see safety)."
        ),
    ] = False
    engine_ca: Annotated[
        Path | None, MODEL("File of CA certificates to verify remote engines with.", "those of the system")
    ] = None
    tool_call_parser: Annotated[
        Name,
        MODEL(
            "Format of the model's tool calls (hermes, mistral, qwen3_coder, …; see tool-calls) in unparsed output;"
            " none: tool calls are not parsed. If set, it also applies to engines that parse tool calls themselves.",
            "auto: from the chat template and name of the model",
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        Name,
        MODEL(
            "Format of the model's reasoning (qwen3, deepseek_r1, mistral, …; see reasoning-formats), likewise.",
            "auto: from the chat template and name of the model",
        ),
    ] = "auto"
    harmony: Annotated[
        bool, MODEL("Treat the model as a Harmony model (gpt-oss) although neither its name nor its file indicates it.")
    ] = False
    served_model_name: Annotated[
        tuple[Name, ...], MODEL("API name of the first model; further names are aliases.", "from the model")
    ] = ()
    alias: Annotated[
        tuple[Pair, ...], MODEL("NAME=MODEL: an alias of a model; in TOML also the table `[aliases]`.", "none")
    ] = ()
    accept_any_model: Annotated[bool, MODEL("Serve requests for unknown model names with the first model.")] = False
    reasoning_key: Annotated[
        tuple[Name, ...],
        MODEL(
            "Encryption key of the reasoning sent to clients (reasoning.encrypted_content): 32 bytes in base64, or"
            " @FILE. The first key encrypts, all keys decrypt.",
            "generated once and kept in the store",
            "reasoning_encryption_key",
        ),
    ] = ()
    default_output_tokens: Annotated[
        Count | None,
        MODEL("Output token limit of requests without max_output_tokens.", "the free part of the context"),
    ] = None
    max_output_tokens: Annotated[
        Count | None,
        MODEL(
            "Output token limit of all requests; a larger max_output_tokens is lowered to it.",
            "the free part of the context",
        ),
    ] = None
    insist: Annotated[
        Amount,
        MODEL("Retries when the model does not return a required tool call or the required output format."),
    ] = 2
    cache_dir: Annotated[Path, MODEL("Folder for downloaded models.", "$XDG_CACHE_HOME/antiphon")] = field(
        default_factory=cache_home
    )

    first_token_timeout: Annotated[
        Seconds, DEADLINES("Time limit for the first token once the engine has started, in seconds.")
    ] = 600.0
    load_timeout: Annotated[Seconds, DEADLINES("Time limit to load a model, in seconds.")] = 300.0
    idle_timeout: Annotated[Seconds, DEADLINES("Time limit between two tokens of the engine, in seconds.")] = 120.0
    run_timeout: Annotated[Seconds, DEADLINES("Time limit of one response, in seconds.")] = 3600.0

    # Only in the TOML file, as tables.
    engines: tuple[EngineSpec, ...] = ()
    aliases: dict[str, str] = {}
    models: dict[str, ModelSpec] = {}

    @property
    def specs(self) -> tuple[EngineSpec, ...]:
        """One EngineSpec per engine, with the settings that apply to all engines filled in."""
        urls = (self.engine,) if isinstance(self.engine, str) else self.engine
        keys = (self.engine_key,) if isinstance(self.engine_key, str) else self.engine_key or ()
        shared = SharedEngineSettings(keys=keys, ca=self.engine_ca, slots=self.engine_slots, models=self.model)
        return complete_specs(self.engines or [EngineSpec(url=url) for url in urls], shared)

    @property
    def names(self) -> dict[str, str]:
        """Models by alias."""
        names = {**self.aliases, **dict(pair.split("=", 1) for pair in self.alias)}
        if chained := sorted(names.keys() & {*names.values()}):
            raise StartupError(
                f"The alias {chained[0]} is itself the target of another alias: use the name of the model instead."
            )
        return names
