"""Every setting there is, once: its flag, its variable, its TOML key and its help are made from this table.

One name for one setting: `fake_rate` ⇔ `--fake-rate` ⇔ `ANTIPHON_FAKE_RATE` ⇔ `fake_rate`, or `rate` under `[fake]`.
How values are found and checked is sources.py's business. Nothing else reads the environment.
"""

import ipaddress
import os
import tempfile
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from antiphon.config.compat import CompatSettings
from antiphon.config.engines import EngineSpec, ModelSpec, Shared, completed
from antiphon.config.kinds import Count, Key, Name, Pair
from antiphon.config.mcp import McpServerSpec, named
from antiphon.config.notes import Group
from antiphon.config.quotas import Quota, Shedding, TenantSpec
from antiphon.config.searching import WebSearchSettings
from antiphon.errors import StartupError
from antiphon.limits import Limits

SERVER = Group("Server")
MODEL = Group("Model")
DEADLINES = Group("Deadlines")
STORE = Group("Store")
EGRESS = Group("Egress")
TOOLS = Group("Tools")
LLAMACPP = Group("Engine llamacpp")
FAKE = Group("Engine fake")
LOGGING = Group("Logging")
CLIENT = Group("Client")
LIMITS = Group("Limits")

Amount = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0)]
Interval = Annotated[float, Meta(ge=0)]
Rate = Annotated[float, Meta(gt=0)]
Level = Literal["chat", "text", "tokens", "harmony"]
Severity = Literal["debug", "info", "warning", "error"]
Labelled = Annotated[str, Meta(pattern=r"^[^=]+=https?://")]


def _home(variable: str, fallback: str) -> Path:
    """XDG base folders; a relative one is to be ignored, says their specification."""
    named = Path(os.environ.get(variable, ""))
    try:
        return (named if named.is_absolute() else Path.home() / fallback) / "antiphon"
    except RuntimeError:  # no home folder at all: a container with a bare user id
        return Path(tempfile.gettempdir()) / f"antiphon-{os.getuid()}"


def cache_home() -> Path:
    return _home("XDG_CACHE_HOME", ".cache")


def data_home() -> Path:
    return _home("XDG_DATA_HOME", ".local/share")


def config_home() -> Path:
    return _home("XDG_CONFIG_HOME", ".config")


class Config(CompatSettings, Struct, frozen=True, kw_only=True):
    """All settings, checked. A Limits field `body_bytes` is the setting `limit_body_bytes`, and so on."""

    config: Annotated[
        Path | None,
        SERVER("TOML file with settings.", "./antiphon.toml, else $XDG_CONFIG_HOME/antiphon/config.toml, if it exists"),
    ] = None
    host: Annotated[Name, SERVER("Address to listen on. Beyond loopback only with an API key.")] = "127.0.0.1"
    port: Annotated[Port, SERVER("Port to listen on; 0 takes a free one.")] = 8000
    api_key: Annotated[
        tuple[Key, ...],
        SERVER(
            "Key that clients must send, as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
            "none: everyone on this machine is let in",
        ),
    ] = ()
    api_key_file: Annotated[
        Path | None,
        SERVER("File of such keys, one on each line: KEY, or TENANT KEY. A SIGHUP reads it again (see keys).", "none"),
    ] = None
    allow_host: Annotated[
        tuple[Name, ...], SERVER("Another `Host` to answer to while on loopback.", "loopback names only")
    ] = ()
    allow_origin: Annotated[
        tuple[Name, ...],
        SERVER("Origin of a web page that may call the server, such as https://app.example.", "the server's own pages"),
    ] = ()
    queue: Annotated[Amount, SERVER("Requests that may wait for each model; beyond, 429.")] = 64
    ping_interval: Annotated[
        Interval, SERVER("Seconds of silence in a stream before a keepalive event; 0 sends none.")
    ] = 15.0
    stall_seconds: Annotated[Seconds, SERVER("Seconds a client may leave its stream unread.")] = 60.0
    keepalive_seconds: Annotated[Seconds, SERVER("Seconds an idle connection is kept open.")] = 75.0
    websocket: Annotated[
        Literal["on", "off"], SERVER("Whether responses are made over WebSockets too; off: an upgrade is a 426.")
    ] = "on"
    websocket_lanes: Annotated[
        Literal["on", "off"],
        SERVER("Whether a WebSocket makes several responses at once; off: one, and no other is taken meanwhile."),
    ] = "on"
    max_websocket_connections: Annotated[Amount, SERVER("WebSockets that may be open; beyond, 503.")] = 100
    max_websocket_connections_per_key: Annotated[
        Count | None, SERVER("WebSockets that may be open with one API key; beyond, 503.", "no bound of its own")
    ] = None
    websocket_lifetime: Annotated[Seconds, SERVER("Seconds after which a WebSocket is closed.")] = 3600.0
    websocket_warning: Annotated[
        Interval, SERVER("Seconds before that at which it is told so (`connection_expiring`); 0 tells nothing.")
    ] = 300.0
    websocket_ping_interval: Annotated[Interval, SERVER("Seconds between pings of a WebSocket; 0 sends none.")] = 20.0
    websocket_ping_timeout: Annotated[Seconds, SERVER("Seconds that a WebSocket's client may take to answer one.")] = (
        20.0
    )
    websocket_cache_bytes: Annotated[
        Count, SERVER("Bytes that a WebSocket remembers of its responses that are not stored.")
    ] = 32 * 1024 * 1024
    workers: Annotated[
        Count, SERVER("Processes that share the port and the store (see deployment); each has bounds of its own.")
    ] = 1
    shutdown_grace: Annotated[Interval, SERVER("Seconds that running responses get to end at shutdown.")] = 10.0

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

    store: Annotated[
        Name | None,
        STORE(
            "Where responses and conversations are kept: a file (SQLite), postgresql://…, or memory.",
            "$XDG_DATA_HOME/antiphon/antiphon.db",
        ),
    ] = None
    disable_store: Annotated[bool, STORE("Keep nothing: `store` is taken as false everywhere.")] = False
    store_ttl: Annotated[Seconds, STORE("Seconds that an ended response is kept.", "2592000, 30 days")] = 2_592_000.0
    store_max_entries: Annotated[
        Count | None, STORE("Responses kept of each tenant; beyond, the oldest go.", "no bound")
    ] = None
    store_max_bytes: Annotated[
        Count | None,
        STORE("Bytes kept of each tenant; beyond, the oldest responses go.", "10 GiB; in memory 512 MiB"),
    ] = None
    conversation_max_entries: Annotated[
        Count, STORE("Conversations kept of each tenant; beyond, those longest unused go.")
    ] = 100_000
    live: Annotated[
        Name | None,
        STORE("Where running responses are followed across processes: redis://….", "the store"),
    ] = None
    keep_streams: Annotated[
        Interval,
        STORE("Seconds that a stream whose client is gone runs on, so that it can be taken up again; 0 cancels it."),
    ] = 0.0
    max_active_sessions: Annotated[Count, STORE("Responses that may run at once; beyond, 429.")] = 2000
    background_queue: Annotated[Count, STORE("Background responses of each tenant that may wait or run.")] = 1000
    background_slots: Annotated[Count, STORE("Background responses that this process runs at once.")] = 16
    background_timeout: Annotated[
        Seconds, STORE("Seconds from its creation in which a background response must have ended.")
    ] = 86_400.0
    background_attempts: Annotated[
        Count, STORE("Servers that may die of a background response before it is given up.")
    ] = 5
    lease_seconds: Annotated[
        Seconds, STORE("Seconds without a sign of life after which a server's responses are taken over.")
    ] = 15.0

    allow_egress: Annotated[
        tuple[Name, ...],
        EGRESS(
            "HOST, HOST:PORT or network (10.0.0.0/8) that URLs in requests may lead to, though it is not public.",
            "public addresses only",
        ),
    ] = ()
    egress_timeout: Annotated[Seconds, EGRESS("Seconds to fetch what a URL names, redirects included.")] = 10.0

    max_turns: Annotated[
        Count, TOOLS("Turns with tools that a response may take; then the model has to answer without them.")
    ] = 32
    tools_at_once: Annotated[Count, TOOLS("Calls of one response that run side by side.")] = 8
    mcp_server: Annotated[
        tuple[Labelled, ...],
        TOOLS(
            "LABEL=URL: an MCP server that requests may name by its label alone; [[mcp]] in the file says more.", "none"
        ),
    ] = ()
    mcp_require_approval: Annotated[
        Literal["never", "always"],
        TOOLS("Whether calls of MCP tools need an approval where a request does not say; OpenAI's default is always."),
    ] = "never"
    tool_timeout: Annotated[Seconds, TOOLS("Seconds a tool may go without a sign of life.")] = 60.0
    tool_list_timeout: Annotated[Seconds, TOOLS("Seconds to connect to an MCP server and list its tools.")] = 30.0
    wait_for_tool_outputs: Annotated[
        bool,
        TOOLS("Have streamed and background responses wait for the client's tools, though requests do not ask for it."),
    ] = False
    tool_output_timeout: Annotated[
        Seconds,
        TOOLS("Seconds that a response waits for the outputs of its client's tools.", None, "responses_tool_timeout"),
    ] = 600.0
    max_tool_output_bytes: Annotated[
        Count,
        TOOLS(
            "Bytes of a request that submits a tool's output; also RESPONSES_MAX_TOOL_OUTPUT_BYTES.",
            None,
            "responses_max_tool_output_bytes",
        ),
    ] = 4 * 1024 * 1024

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

    log_level: Annotated[Severity, LOGGING("Least severity that is logged.")] = "info"
    log_format: Annotated[Literal["text", "json"], LOGGING("Shape of a log line.")] = "text"

    url: Annotated[
        Name | None, CLIENT("Server that `antiphon chat` and `antiphon models` talk to.", "http://HOST:PORT")
    ] = None

    web_search: WebSearchSettings = WebSearchSettings()
    limits: Limits = Limits()
    quota: Quota = Quota()
    shed: Shedding = Shedding()

    # In the file alone, as tables.
    engines: tuple[EngineSpec, ...] = ()
    aliases: dict[str, str] = {}
    models: dict[str, ModelSpec] = {}
    mcp: tuple[McpServerSpec, ...] = ()
    tenants: dict[str, TenantSpec] = {}

    @property
    def mcp_servers(self) -> dict[str, McpServerSpec]:
        """Those that the operator named, by label."""
        return named(self.mcp, self.mcp_server)

    @property
    def at_home(self) -> bool:
        """One person's machine: nobody else can reach the server, so loopback may be named in a request."""
        return self.on_loopback and not self.api_key and self.api_key_file is None

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

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def server_url(self) -> str:
        """Where a client on this machine finds the server of these settings."""
        if self.url:
            return self.url.rstrip("/")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def store_place(self) -> str:
        """Without a store there is still one in memory, in which nothing is ever kept."""
        return "memory" if self.disable_store else self.store or str(data_home() / "antiphon.db")

    def __repr__(self) -> str:
        """Without the keys: a Config may end up in a log."""
        return f"Config(model={self.model!r}, engine={self.engine!r}, host={self.host!r}, port={self.port})"
