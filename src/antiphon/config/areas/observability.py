"""Settings of logging, traces and the access log."""

from typing import Annotated, Final, Literal

from msgspec import Struct

from antiphon.config.help_text import LOGGING, OBSERVABILITY
from antiphon.config.value_types import Amount, Key, Name, Severity
from antiphon.errors import StartupError

# OpenTelemetry's names. Variables with our prefix take precedence; the OpenTelemetry SDK reads its other variables.
OTEL_VARIABLES: Final = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "otlp_endpoint",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "otlp_traces_endpoint",
}

_TRACES_PATH = "/v1/traces"


class ObservabilitySettings(Struct, frozen=True, kw_only=True):
    """Logging, the access log, and traces."""

    log_level: Annotated[Severity, LOGGING("Minimum severity of log messages.")] = "info"
    log_format: Annotated[Literal["text", "json"], LOGGING("Format of log lines.")] = "text"

    access_log: Annotated[
        Name | None,
        OBSERVABILITY("File to write one JSON line per request to; - is standard error (see observing).", "none"),
    ] = None
    otlp_endpoint: Annotated[
        Key | None,
        OBSERVABILITY(
            "OTLP collector for traces, such as http://127.0.0.1:4318; also OTEL_EXPORTER_OTLP_ENDPOINT. Requires the"
            " extra tracing.",
            "none: tracing is off",
        ),
    ] = None
    otlp_traces_endpoint: Annotated[
        Key | None,
        OBSERVABILITY(
            "Full URL of the collector's traces endpoint; also OTEL_EXPORTER_OTLP_TRACES_ENDPOINT.",
            "otlp_endpoint with /v1/traces",
        ),
    ] = None
    trace_content: Annotated[
        bool, OBSERVABILITY("Include content in traces: prompts, outputs and tool call arguments.")
    ] = False
    keep_traces: Annotated[
        Amount,
        OBSERVABILITY(
            "Number of responses whose prompts, raw outputs and timings stay in memory for /v1/responses/{id}/trace; 0"
            " disables it."
        ),
    ] = 0


def traces_url(base: str | None, full_url: str | None) -> str | None:
    """Return the URL that traces are sent to, or None if tracing is off. Raises StartupError."""
    url = full_url if full_url is not None or base is None else base.rstrip("/") + _TRACES_PATH
    if url is not None and not url.startswith(("http://", "https://")):
        raise StartupError("--otlp-endpoint must be a URL that begins with http:// or https://.")
    return url
