"""The settings, one struct per area. A new setting is a field of its area.

Its annotation has the type, the help text and, if the value does not describe it, a text for the default; flags,
variables and docs are generated from them.
"""

import ipaddress
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Struct, field

from antiphon.config.base_folders import cache_home, data_home
from antiphon.config.engines import EngineSpec, ModelSpec, complete_specs
from antiphon.config.setting_types import (
    Amount,
    Count,
    Host,
    Interval,
    Key,
    Labelled,
    Level,
    Name,
    Origin,
    Pair,
    Port,
    Rate,
    Seconds,
    Severity,
    ToolServerUrl,
    WorkerAddress,
)
from antiphon.config.tool_settings import McpServerSpec, index_by_label, index_tool_servers
from antiphon.errors import StartupError


class ServerSettings(Struct, frozen=True, kw_only=True):
    """Address, authentication and connections."""

    host: Annotated[Name, "Address to listen on. Addresses other than loopback require an API key."] = "127.0.0.1"
    port: Annotated[Port, "Port to listen on; 0 selects a free port."] = 8000
    api_key: Annotated[
        tuple[Key, ...],
        "API key that clients must send, as `Authorization: Bearer KEY` or `x-api-key: KEY`.",
        "none: all users of this machine have access",
    ] = ()
    api_key_file: Annotated[
        Path | None, "File of API keys, one per line: KEY, or TENANT KEY. SIGHUP reloads it (see keys).", "none"
    ] = None
    allow_host: Annotated[tuple[Host, ...], "`Host` header to accept on loopback, too.", "loopback names only"] = ()
    allow_origin: Annotated[
        tuple[Origin, ...],
        "Origin of a web page that may call the server, such as https://app.example (CORS).",
        "pages of the server itself",
    ] = ()
    ui: Annotated[
        Literal["auto", "on", "off"],
        "Serve the page at /, which shows only what the API key of its user may read. auto: on loopback; off: a 404.",
    ] = "auto"
    queue: Annotated[Amount, "Maximum number of requests that wait for each model; more are rejected with 429."] = 64
    ping_interval: Annotated[Interval, "Seconds without an event until a stream sends a keepalive; 0: none."] = 15.0
    stall_seconds: Annotated[Seconds, "Seconds until a client that does not read its stream is disconnected."] = 60.0
    keepalive_seconds: Annotated[Seconds, "Seconds before an idle connection is closed."] = 75.0
    websocket: Annotated[
        Literal["on", "off"], "Accept WebSocket connections for responses; off: upgrades are rejected with 426."
    ] = "on"
    websocket_lanes: Annotated[
        Literal["on", "off"],
        "Run several responses of one WebSocket concurrently; off: one at a time, others are rejected.",
    ] = "on"
    max_websocket_connections: Annotated[Amount, "Maximum number of open WebSockets; more are rejected with 503."] = 100
    max_websocket_connections_per_key: Annotated[
        Count | None, "Maximum number of open WebSockets per API key; more are rejected with 503.", "no limit per key"
    ] = None
    websocket_lifetime: Annotated[Seconds, "Maximum lifetime of a WebSocket, in seconds."] = 3600.0
    websocket_warning: Annotated[
        Interval, "Seconds before the end of its lifetime at which `connection_expiring` is sent; 0 disables it."
    ] = 300.0
    websocket_ping_interval: Annotated[Interval, "Seconds between WebSocket pings; 0 disables them."] = 20.0
    websocket_ping_timeout: Annotated[Seconds, "Seconds to wait for the pong before the WebSocket is closed."] = 20.0
    websocket_cache_bytes: Annotated[
        Count, "Bytes of responses that are not stored which a WebSocket keeps in memory."
    ] = 32 * 1024 * 1024
    workers: Annotated[
        Count, "Worker processes, which share the port, the store and the rate limits; other limits apply per process."
    ] = 1
    shutdown_grace: Annotated[Interval, "Seconds that running responses have to finish at shutdown."] = 10.0

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def serves_page(self) -> bool:
        return self.ui == "on" or (self.ui == "auto" and self.on_loopback)

    @property
    def allow_loopback_urls(self) -> bool:
        """Whether requests may name loopback URLs: only local users can reach the server, and there are no API keys."""
        return self.on_loopback and not self.api_key and self.api_key_file is None


ReasoningSummaries = Literal["thought", "model"]


class InferenceSettings(Struct, frozen=True, kw_only=True):
    """Models, engines, and the time limits of generation."""

    model: Annotated[
        tuple[Name, ...],
        "A GGUF file (openvino: also a folder; for images FILE+MMPROJ), hf:ORG/REPO[:QUANT] of the Hugging Face Hub, or"
        " the name of a known model; ID=FILE sets its name. For a remote engine: a model to serve.",
        "the built-in model; all models of a remote engine",
    ] = ()
    engine: Annotated[
        Name | tuple[Name, ...],
        "Inference engine: llamacpp or openvino (embedded, also as openvino:FILE), a server (NAME://HOST:PORT such as"
        " vllm://gpu-1:8000, NAME+https:// with TLS; see engines), or fake (no model, for tests). http://HOST:PORT is"
        " identified at the start. Several engines share the load.",
    ] = "llamacpp"
    discover: Annotated[
        bool,
        "Use the engines that answer on their usual ports of this machine (Ollama, vLLM, OVMS, SGLang, llama.cpp, LM"
        " Studio); the embedded engine if there is none.",
    ] = False
    engine_key: Annotated[
        Name | tuple[Key, ...] | None,
        "API key of the engine, sent to it only; with several engines, HOST:PORT=KEY selects the engine.",
        "none",
    ] = None
    engine_slots: Annotated[
        Count | None,
        "Maximum number of concurrent requests to each remote engine.",
        "as reported by the engine, else 1024",
    ] = None
    context: Annotated[
        Count | None,
        "Context size in tokens, for prompt and output together: of each slot of the embedded engine, and of the"
        " models of a remote engine that reports none or a larger one.",
        "that of the model; embedded at most 8192",
    ] = None
    engine_level: Annotated[
        Literal["chat", "tokens"],
        "Form of requests to a remote engine: chat messages, or token ids if the engine accepts them, whose output"
        " the server parses.",
    ] = "chat"
    allow_control_strings: Annotated[
        bool,
        "Pass texts of clients, tools and files to a remote engine unchanged, although it may convert strings"
        " in them to control tokens. Otherwise such strings are broken up (see safety).",
    ] = False
    engine_ca: Annotated[Path | None, "File of CA certificates to verify engines with.", "those of the system"] = None
    tool_call_parser: Annotated[
        Name,
        "Format of the model's tool calls (hermes, mistral, qwen3_coder, …; see tool-calls) in unparsed output;"
        " none: tool calls are not parsed. If set, it also applies to engines that parse tool calls themselves.",
        "auto: from the chat template and name of the model",
    ] = "auto"
    reasoning_parser: Annotated[
        Name,
        "Format of the model's reasoning (qwen3, deepseek_r1, mistral, …; see reasoning-formats), likewise.",
        "auto: from the chat template and name of the model",
    ] = "auto"
    harmony: Annotated[bool, "Treat the model as gpt-oss, although neither its name nor its file says so."] = False
    served_model_name: Annotated[tuple[Name, ...], "API name of the first model, then aliases.", "from the model"] = ()
    alias: Annotated[tuple[Pair, ...], "NAME=MODEL: an alias of a model; in TOML also as `[aliases]`.", "none"] = ()
    accept_any_model: Annotated[bool, "Serve requests for unknown model names with the first model."] = False
    reasoning_key: Annotated[
        tuple[Name, ...],
        "Encryption key of the reasoning sent to clients (reasoning.encrypted_content): 32 bytes in base64, or"
        " @FILE. The first key encrypts, all keys decrypt.",
        "generated once and kept in the store",
    ] = ()
    default_output_tokens: Annotated[
        Count | None, "Output token limit of requests without max_output_tokens.", "the free part of the context"
    ] = None
    max_output_tokens: Annotated[
        Count | None,
        "Output token limit of all requests; a larger max_output_tokens is lowered to it.",
        "the free part of the context",
    ] = None
    insist: Annotated[
        Amount,
        "Retries when the model stops without an answer, or does not return a required tool call or the required"
        " output format.",
    ] = 2
    reasoning_summaries: Annotated[
        ReasoningSummaries,
        "What a client gets as the summary of reasoning: `thought` is the reasoning itself, `model` a summary that the"
        " model writes in one more request for each reasoning item.",
    ] = "thought"
    moderation_model: Annotated[
        Name | None,
        "Model that judges content for /v1/moderations and the `moderation` field: of an engine with /moderations, or a"
        " chat model that supports JSON schemas (see moderation).",
        "none: both are refused",
    ] = None
    moderation_timeout: Annotated[Seconds, "Time limit of one moderation, in seconds."] = 30.0
    cache_dir: Annotated[Path, "Folder for downloaded models.", "$XDG_CACHE_HOME/antiphon"] = field(
        default_factory=cache_home
    )

    first_token_timeout: Annotated[Seconds, "Seconds for the first token once the engine has started."] = 600.0
    load_timeout: Annotated[Seconds, "Time limit to load a model, in seconds."] = 300.0
    idle_timeout: Annotated[Seconds, "Time limit between two tokens of the engine, in seconds."] = 120.0
    run_timeout: Annotated[Seconds, "Time limit of one response, in seconds."] = 3600.0

    # Only in the TOML file, as tables.
    engines: tuple[EngineSpec, ...] = ()
    aliases: dict[str, str] = {}
    models: dict[str, ModelSpec] = {}

    @property
    def specs(self) -> tuple[EngineSpec, ...]:
        """One EngineSpec per engine, with the settings that apply to all engines filled in."""
        urls = (self.engine,) if isinstance(self.engine, str) else self.engine
        keys = (self.engine_key,) if isinstance(self.engine_key, str) else self.engine_key or ()
        specs = self.engines or [EngineSpec(url=url) for url in urls]
        return complete_specs(specs, keys, self.engine_ca, self.engine_slots, self.model)

    @property
    def names(self) -> dict[str, str]:
        """Models by alias."""
        names = {**self.aliases, **dict(pair.split("=", 1) for pair in self.alias)}
        if chained := sorted(names.keys() & {*names.values()}):
            raise StartupError(
                f"The alias {chained[0]} is itself the target of another alias: use the name of the model instead."
            )
        return names


class EmbeddedSettings(Struct, frozen=True, kw_only=True):
    """The engines llamacpp, openvino and fake. Other engines have their own server."""

    gpu_layers: Annotated[Amount | None, "Number of model layers to offload to the GPU.", "all that fit"] = None
    threads: Annotated[Count | None, "Number of CPU threads per model.", "one per core"] = None
    slots: Annotated[Count | None, "Number of responses that one model generates concurrently.", "4; openvino: 32"] = (
        None
    )
    batch_size: Annotated[
        Count | None,
        "Prompt tokens processed per batch; larger batches delay cancellation.",
        "as many as take less than half a second",
    ] = None
    max_loaded_models: Annotated[Count, "Maximum number of models in memory; the least recently used is unloaded."] = 2

    llamacpp_embeddings: Annotated[
        bool, "Compute embeddings with llama.cpp even where OpenVINO is installed, which is faster on x86 CPUs."
    ] = False

    openvino_cache_tokens: Annotated[
        Count | None,
        "Tokens of prompts and answers that a model holds in memory for all responses together; more requests wait.",
        "32768",
    ] = None
    openvino_draft_model: Annotated[
        Path | None,
        "A smaller model with the same vocabulary, a folder in OpenVINO's format; the model only verifies its tokens.",
        "none",
    ] = None
    openvino_prompt_lookup: Annotated[bool, "Guess the next tokens from the prompt; the model only verifies them."] = (
        False
    )

    fake_level: Annotated[Level, "Level of the prompts it accepts and of the chunks it returns."] = "chat"
    fake_script: Annotated[Path | None, "TOML file with the exact chunks, delays and errors to return.", "none"] = None
    fake_tokens: Annotated[Count | None, "Tokens of every response, for load tests.", "it echoes «You said: …»"] = None
    fake_rate: Annotated[Rate | None, "Tokens per second of each response.", "unlimited"] = None
    fake_delay: Annotated[Interval, "Delay before the first token of each response, in seconds."] = 0.0
    fake_joined: Annotated[Count, "Number of tokens per chunk."] = 1
    fake_burst: Annotated[Count, "Chunks sent before the task yields to other streams; 1: after every chunk."] = 16


class StorageSettings(Struct, frozen=True, kw_only=True):
    """The store, the live log, and background responses."""

    store: Annotated[
        Name | None,
        "Store of responses, conversations and files: a file (SQLite), postgresql://…, or memory.",
        "$XDG_DATA_HOME/antiphon/antiphon.db",
    ] = None
    disable_store: Annotated[bool, "Store nothing: `store` is treated as false in all requests."] = False
    store_ttl: Annotated[Seconds, "Seconds to keep an ended response.", "2592000, 30 days"] = 2_592_000.0
    store_max_entries: Annotated[
        Count | None, "Maximum number of stored responses per tenant; the oldest are deleted.", "no limit"
    ] = None
    store_max_bytes: Annotated[
        Count | None,
        "Maximum number of stored bytes per tenant; the oldest responses are deleted.",
        "10 GiB; in memory 512 MiB",
    ] = None
    conversation_max_entries: Annotated[
        Count, "Maximum number of stored conversations per tenant; the least recently used are deleted."
    ] = 100_000
    files: Annotated[
        Name | None,
        "Where the contents of files are stored: a folder, `store` for the database of --store, or s3://BUCKET/PREFIX.",
        "a folder beside the SQLite file; with PostgreSQL or in memory, the store",
    ] = None
    files_max_entries: Annotated[Count, "Maximum number of files per tenant; more are rejected."] = 100_000
    files_max_bytes: Annotated[Count, "Maximum number of bytes of all files and skills per tenant.", "100 GiB"] = (
        100 * 1024**3
    )
    skills_max_entries: Annotated[Count, "Maximum number of versions of skills per tenant; more are rejected."] = 1000
    live: Annotated[
        Name | None, "Live log, by which processes follow each other's running responses: redis://….", "the store"
    ] = None
    keep_streams: Annotated[
        Interval,
        "Seconds that a stream continues after its client disconnects, so that it can be resumed; 0 cancels it. It "
        "gives way to requests that wait for its slot.",
    ] = 600.0
    max_active_sessions: Annotated[Count, "Maximum number of running responses; more are rejected with 429."] = 2000
    background_queue: Annotated[Count, "Maximum number of waiting or running background responses per tenant."] = 1000
    background_slots: Annotated[Count, "Maximum number of background responses that one process runs."] = 16
    background_timeout: Annotated[Seconds, "Seconds from the creation of a background response to its end."] = 86_400.0
    background_attempts: Annotated[Count, "Attempts until a background response that crashes its server is failed."] = 5
    lease_seconds: Annotated[Seconds, "Seconds without a heartbeat until other servers take its responses over."] = 15.0

    @property
    def store_location(self) -> str:
        """Location of the store. With `disable_store` it is an in-memory store that stays empty."""
        return "memory" if self.disable_store else self.store or str(data_home() / "antiphon.db")


class VectorSettings(Struct, frozen=True, kw_only=True):
    """Vector stores."""

    embedding_model: Annotated[
        Name | None,
        "Model that embeds the files of vector stores. If it is changed, they are indexed again in the background.",
        "that of the vector store; of a new one, the first model that embeds",
    ] = None
    rewrite_model: Annotated[
        Name | None,
        "Model that rewrites the queries of searches with `rewrite_query`.",
        "the first model that generates",
    ] = None
    rerank_model: Annotated[
        Name | None,
        "Model that ranks the hits of searches in vector stores again: one of an engine with the task `rerank`.",
        "none: hits are ranked by words and embeddings",
    ] = None
    indexing_slots: Annotated[Count, "Number of files of vector stores that one process indexes concurrently."] = 2
    vector_index_bytes: Annotated[
        Count, "Memory for the indexes of vector stores that were searched recently, in each process.", "256 MiB"
    ] = 256 * 1024 * 1024
    vector_stores_max_entries: Annotated[Count, "Maximum number of vector stores per tenant; more are rejected."] = 1000
    vector_store_max_files: Annotated[Count, "Maximum number of files of a vector store; more are rejected."] = 100_000


UnservedTools = Literal["auto", "ignore", "refuse"]

SandboxLevel = Literal["auto", "namespaces", "landlock", "gvisor", "none"]


class ToolSettings(Struct, frozen=True, kw_only=True):
    """Tools, MCP servers, and outgoing connections."""

    allow_egress: Annotated[
        tuple[Name, ...],
        "HOST, HOST:PORT or network (10.0.0.0/8) that URLs in requests may use although it is not public.",
        "public addresses only",
    ] = ()
    egress_timeout: Annotated[Seconds, "Time limit to fetch a URL of a request, redirects included, in seconds."] = 10.0

    max_turns: Annotated[Count, "Maximum number of turns with tools; then the model must answer without tools."] = 32
    tools_at_once: Annotated[Count, "Maximum number of concurrent tool calls of one response."] = 8
    unserved_tools: Annotated[
        UnservedTools,
        "Hosted tools that a request declares and this server does not run: ignore them, refuse the request, or (auto) "
        "ignore web_search alone, which some clients always declare.",
    ] = "auto"
    mcp_server: Annotated[
        tuple[Labelled, ...],
        "LABEL=URL: an MCP server that requests may use by its label; [[mcp]] in the file has more options.",
        "none",
    ] = ()
    mcp_require_approval: Annotated[
        Literal["never", "always"],
        "Approval of MCP tool calls if the request does not set it; OpenAI's default is always.",
    ] = "never"
    code_require_approval: Annotated[
        Literal["never", "always"],
        "Approval of calls of code_interpreter and of the shell in containers, as for MCP tools (see approvals).",
    ] = "never"
    tool_server: Annotated[
        tuple[ToolServerUrl, ...],
        "python=URL, browser=URL, container=URL: MCP servers that run code_interpreter, web_search and the shell of"
        " containers instead of this server, several joined by commas; [[tool_servers]] in the file has more options"
        " (see tool-servers).",
        "none",
    ] = ()
    tool_plugin: Annotated[
        tuple[Name, ...],
        "Tool of another package, by the name of its entry point, which replaces the tool of its kind (see extending).",
        "none",
    ] = ()
    tool_timeout: Annotated[Seconds, "Seconds without output or progress after which a tool call fails."] = 60.0
    tool_list_timeout: Annotated[Seconds, "Seconds to connect to an MCP server and to list its tools."] = 30.0
    vector_store_timeout: Annotated[
        Seconds, "Seconds that a response with file_search waits for files that are still being indexed."
    ] = 60.0
    sandbox: Annotated[
        SandboxLevel,
        "How code in containers is confined (see sandbox): by namespaces, by landlock, by the stronger of those that "
        "this host allows (auto), by gvisor (its runsc must be installed), or none, which means that no code is run.",
    ] = "auto"
    sandbox_python: Annotated[
        Name | None,
        "Interpreter that runs code in containers, CPython 3.11 or newer, with the packages that it may import.",
        "the server's",
    ] = None
    sandbox_folder: Annotated[
        Path | None, "Folder for the files of containers, which are deleted with them.", "the system's temporary folder"
    ] = None
    sandbox_max_containers: Annotated[Count, "Maximum number of containers on this host."] = 64
    sandbox_url: Annotated[
        tuple[WorkerAddress, ...],
        "http:// or https://HOST:PORT of sandbox workers that run code instead of this host; every address of the host"
        " name is a worker (see sandbox).",
        "none: code runs on this host",
    ] = ()
    sandbox_key_file: Annotated[
        Path | None,
        "File with the key that sandbox workers require; for a worker, the keys that it accepts, one per line.",
        "none",
    ] = None
    containers_max_entries: Annotated[Count, "Maximum number of containers per tenant that have not expired."] = 20
    container_max_memory: Annotated[
        Literal["1g", "4g", "16g", "64g"], "Largest memory_limit that a request may choose for a container."
    ] = "1g"
    container_allowed_domains: Annotated[
        tuple[Name, ...],
        "Domains that the network policies of containers may allow: a host name, *.DOMAIN for all names below it, or *"
        " for all; needs --sandbox namespaces (see containers).",
        "none: containers have no network",
    ] = ()
    code_seconds: Annotated[Seconds, "Seconds after which a call of code in a container is stopped."] = 120.0
    enable_computer_call: Annotated[
        bool, "Offer computer and computer_use_preview to models; the client runs their calls (see computer-use)."
    ] = False
    wait_for_tool_outputs: Annotated[
        bool, "Let streamed and background responses wait for client tool outputs without being requested to."
    ] = False
    tool_output_timeout: Annotated[Seconds, "Seconds that a response waits for tool outputs of its client."] = 600.0
    max_tool_output_bytes: Annotated[
        Count, "Maximum size of a request that submits tool outputs, in bytes; also RESPONSES_MAX_TOOL_OUTPUT_BYTES."
    ] = 4 * 1024 * 1024

    # Only in the TOML file, as tables.
    mcp: tuple[McpServerSpec, ...] = ()
    tool_servers: tuple[McpServerSpec, ...] = ()

    @property
    def mcp_servers(self) -> dict[str, McpServerSpec]:
        """The operator's MCP servers by label."""
        return index_by_label(self.mcp, self.mcp_server)

    @property
    def tool_server_specs(self) -> dict[str, McpServerSpec]:
        """The MCP servers that run built-in tools, by name: python, browser, container."""
        return index_tool_servers(self.tool_servers, self.tool_server)


# OpenTelemetry's names. Variables with our prefix take precedence; the OpenTelemetry SDK reads its other variables.
OTEL_VARIABLES: Final = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "otlp_endpoint",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "otlp_traces_endpoint",
}

_TRACES_PATH = "/v1/traces"


class ObservabilitySettings(Struct, frozen=True, kw_only=True):
    """Logging, the access log, and traces."""

    log_level: Annotated[Severity, "Minimum severity of log messages."] = "info"
    log_format: Annotated[Literal["text", "json"], "Format of log lines."] = "text"

    access_log: Annotated[Name | None, "File for one JSON line per request; -: stderr (see observing).", "none"] = None
    otlp_endpoint: Annotated[
        Key | None,
        "OTLP collector for traces, such as http://127.0.0.1:4318; also OTEL_EXPORTER_OTLP_ENDPOINT. Requires the"
        " extra tracing.",
        "none: tracing is off",
    ] = None
    otlp_traces_endpoint: Annotated[
        Key | None,
        "Full URL of the collector's traces endpoint; also OTEL_EXPORTER_OTLP_TRACES_ENDPOINT.",
        "otlp_endpoint with /v1/traces",
    ] = None
    trace_content: Annotated[bool, "Include content in traces: prompts, outputs and tool call arguments."] = False
    keep_traces: Annotated[
        Amount,
        "Number of responses whose prompts, raw outputs and timings stay in memory for /v1/responses/{id}/trace; 0"
        " disables it.",
    ] = 0

    @property
    def traces_url(self) -> str | None:
        """The URL that traces are sent to, or None if tracing is off. Raises StartupError."""
        url = self.otlp_traces_endpoint
        if url is None and self.otlp_endpoint is not None:
            url = self.otlp_endpoint.rstrip("/") + _TRACES_PATH
        if url is not None and not url.startswith(("http://", "https://")):
            raise StartupError("--otlp-endpoint must be a URL that begins with http:// or https://.")
        return url


# Other names of settings; those with "responses" are of a fork of vLLM.
ALTERNATIVE_NAMES: Final = {
    "keep_streams": "responses_session_ttl",
    "max_active_sessions": "responses_max_active_sessions",
    "disable_store": "disable_responses_store",
    "store_ttl": "responses_store_ttl",
    "store_max_entries": "responses_store_max_entries",
    "store_max_bytes": "responses_store_max_bytes",
    "ping_interval": "responses_ping_interval_seconds",
    "default_service_tier": "responses_default_service_tier",
    "allowed_service_tiers": "responses_allowed_service_tiers",
    "compat": "responses_compatibility_mode",
    "reasoning_events": "legacy_reasoning_events",  # true selects the names that are now OpenAI's
    "reasoning_key": "reasoning_encryption_key",
    "tool_output_timeout": "responses_tool_timeout",
    "max_tool_output_bytes": "responses_max_tool_output_bytes",
    "web_search_url": "web_search",
    "shed_memory": "max_memory",
}
# Other spellings of the values of settings; a flag without a value is "true".
VALUE_SYNONYMS: Final = {
    "default_service_tier": {"auto": "default"},
    "compat": {"true": "on", "false": "off"},
    "legacy_events": {"true": "on", "false": "off"},
    "reasoning_events": {"true": "openai", "false": "open-responses"},
}

Tier = Literal["default", "flex", "scale", "priority", "fast", "ultrafast"]
CacheKeyUse = Literal["route", "salt"]
NamedTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]


class CompatibilitySettings(Struct, frozen=True, kw_only=True):
    """Service tiers, extensions of other servers, headers, and stored prompts."""

    default_service_tier: Annotated[Tier, "Service tier of requests that set `auto` or none."] = "default"
    allowed_service_tiers: Annotated[
        tuple[NamedTier, ...],
        "Service tiers that requests may name besides the default one; others are rejected with 400.",
        "all",
    ] = ()
    prompt_cache_key: Annotated[
        CacheKeyUse,
        "Use of the field prompt_cache_key. route: requests with the same key run on the same one of several engines."
        " salt: only they share the engine's prefix cache, if it can be partitioned (vllm, sglang).",
    ] = "route"
    compat: Annotated[
        Literal["on", "off"],
        "Reject fields that engines support but OpenAI's API does not define (request_id, priority, cache_salt, …);"
        " off: accept them.",
    ] = "on"
    legacy_events: Annotated[
        Literal["off", "on", "strings"],
        "Send legacy events: response.ping, response.tool_call.delta,"
        " response.additional_context, response.rate_limits.updated, response.error, and `connection_expiring` on"
        " WebSockets. strings: tool calls in them are JSON strings.",
    ] = "off"
    reasoning_events: Annotated[
        Literal["openai", "open-responses", "legacy"], "Naming scheme of the reasoning events."
    ] = "openai"
    default_openai_organization: Annotated[
        Key | None, "Value of the response header openai-organization if the request has none.", "none"
    ] = None
    default_openai_version: Annotated[
        Key | None, "Value of the response header openai-version if the request has none.", "none"
    ] = None
    azure_headers: Annotated[bool, "Send the headers x-ms-region, x-ms-request-id and api-supported-versions."] = False
    azure_region: Annotated[Key, "Value of the header x-ms-region."] = "local"
    prompt_dir: Annotated[Path | None, "Folder of prompts for `prompt.id` in requests (see prompts).", "none"] = None
