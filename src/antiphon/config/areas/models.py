"""Settings of models and engines: what generates, under which names, and how long it may take."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct, field

from antiphon.config.areas.server import ServerSettings
from antiphon.config.engines import EngineSpec, ModelSpec, Shared, completed
from antiphon.config.help_text import DEADLINES, MODEL
from antiphon.config.value_types import Amount, Count, Key, Name, Pair, Seconds
from antiphon.config.xdg import cache_home
from antiphon.errors import StartupError


class ModelSettings(ServerSettings, Struct, frozen=True, kw_only=True):
    model: Annotated[
        tuple[Name, ...],
        MODEL(
            "A GGUF file, or the name of a known model; ID=FILE names it. With an engine's server: one of its models.",
            "the built-in model; all of a server's",
        ),
    ] = ()
    engine: Annotated[
        Name | tuple[Name, ...],
        MODEL(
            "What generates: llamacpp (embedded), a server (vllm, sglang, ovms, llamacpp-server, ollama or openai, as"
            " NAME://HOST:PORT; NAME+https:// with TLS), or fake (no model; tests, demos). Several share the work."
        ),
    ] = "llamacpp"
    engine_key: Annotated[
        Name | tuple[Key, ...] | None,  # not Key | tuple: patterns in a union with lists corrupt msgspec 0.22's memory
        MODEL(
            "Key for the engine's server, and for nobody else; of several engines, HOST:PORT=KEY says whose it is.",
            "none",
        ),
    ] = None
    engine_slots: Annotated[
        Count | None,
        MODEL("Requests that each engine's server works on at once.", "what it says, else 1024"),
    ] = None
    engine_level: Annotated[
        Literal["chat", "tokens"],
        MODEL(
            "How an engine's server is asked: by chats, or by the ids of tokens (vllm, sglang, llamacpp-server), which"
            " come back unparsed."
        ),
    ] = "chat"
    allow_control_strings: Annotated[
        bool,
        MODEL(
            "Give an engine's server what clients, tools and files wrote as it is, though it makes control tokens of"
            " whatever looks like one. Else such strings are broken up (see safety)."
        ),
    ] = False
    engine_ca: Annotated[
        Path | None, MODEL("File of certificates to trust in the engine's server.", "the system's")
    ] = None
    tool_call_parser: Annotated[
        Name,
        MODEL(
            "How the model writes tool calls (hermes, mistral, qwen3_coder, …; see tool-calls), where its output"
            " comes unparsed; none: they are not looked for. An engine that parses is read so too, if it is named.",
            "auto: by the model's chat template and name",
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        Name,
        MODEL(
            "How the model writes its thoughts (qwen3, deepseek_r1, mistral, …; see reasoning-formats), likewise.",
            "auto: by the model's chat template and name",
        ),
    ] = "auto"
    harmony: Annotated[
        bool, MODEL("The model speaks Harmony, as gpt-oss does, though neither its name nor its file says so.")
    ] = False
    served_model_name: Annotated[
        tuple[Name, ...], MODEL("Name of the first model in the API; further ones are aliases.", "from the model")
    ] = ()
    alias: Annotated[
        tuple[Pair, ...], MODEL("NAME=MODEL: another name for a model; in TOML also a table `[aliases]`.", "none")
    ] = ()
    accept_any_model: Annotated[bool, MODEL("Answer for unknown model names with the first model.")] = False
    reasoning_key: Annotated[
        tuple[Name, ...],
        MODEL(
            "Key that seals the reasoning which clients carry (reasoning.encrypted_content): 32 bytes in base64, or"
            " @FILE. The first one seals, each of them opens.",
            "one that is made and kept in the store",
            "reasoning_encryption_key",
        ),
    ] = ()
    default_output_tokens: Annotated[
        Count | None,
        MODEL("Tokens of an answer whose request names no max_output_tokens.", "what the context has room for"),
    ] = None
    max_output_tokens: Annotated[
        Count | None,
        MODEL("Tokens of any answer; a larger max_output_tokens is lowered to it.", "what the context has room for"),
    ] = None
    insist: Annotated[
        Amount,
        MODEL("How often a model is asked again that did not call as it must, or answer in the form it must."),
    ] = 2
    cache_dir: Annotated[Path, MODEL("Folder for fetched models.", "$XDG_CACHE_HOME/antiphon")] = field(
        default_factory=cache_home
    )

    first_token_timeout: Annotated[Seconds, DEADLINES("Seconds a started engine may take to its first token.")] = 600.0
    load_timeout: Annotated[Seconds, DEADLINES("Seconds a model may take to load.")] = 300.0
    idle_timeout: Annotated[Seconds, DEADLINES("Seconds the engine may be silent between tokens.")] = 120.0
    run_timeout: Annotated[Seconds, DEADLINES("Seconds one response may take altogether.")] = 3600.0

    # In the file alone, as tables.
    engines: tuple[EngineSpec, ...] = ()
    aliases: dict[str, str] = {}
    models: dict[str, ModelSpec] = {}

    @property
    def specs(self) -> tuple[EngineSpec, ...]:
        """One for each engine, with all that is to be known of it."""
        named = (self.engine,) if isinstance(self.engine, str) else self.engine
        keys = (self.engine_key,) if isinstance(self.engine_key, str) else self.engine_key or ()
        shared = Shared(keys=keys, ca=self.engine_ca, slots=self.engine_slots, models=self.model)
        return completed(self.engines or [EngineSpec(url=url) for url in named], shared)

    @property
    def names(self) -> dict[str, str]:
        """Aliases, and the models that they stand for."""
        names = {**self.aliases, **dict(pair.split("=", 1) for pair in self.alias)}
        if twice := sorted(names.keys() & {*names.values()}):
            raise StartupError(f"The alias {twice[0]} stands for a model, and another alias for it: name the model.")
        return names
