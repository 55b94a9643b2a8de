"""Settings for those who watch the server: the log, traces, the access log."""

from typing import Annotated, Final, Literal

from antiphon.config.areas.embedded import EmbeddedSettings
from antiphon.config.help_text import LOGGING, OBSERVING
from antiphon.config.value_types import Amount, Key, Name, Severity
from antiphon.errors import StartupError

# As OpenTelemetry calls them; what has our prefix wins. All its other variables are read by its own SDK.
STANDARD: Final = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "otlp_endpoint",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "otlp_traces_endpoint",
}

_TRACES = "/v1/traces"


class ObservingSettings(EmbeddedSettings, frozen=True, kw_only=True):
    log_level: Annotated[Severity, LOGGING("Least severity that is logged.")] = "info"
    log_format: Annotated[Literal["text", "json"], LOGGING("Shape of a log line.")] = "text"

    access_log: Annotated[
        Name | None,
        OBSERVING("File that gets a line of JSON for every request; - is standard error (see observing).", "none"),
    ] = None
    otlp_endpoint: Annotated[
        Key | None,
        OBSERVING(
            "Collector that gets traces, such as http://127.0.0.1:4318; also OTEL_EXPORTER_OTLP_ENDPOINT. Needs the"
            " extra tracing.",
            "none: nothing is traced",
        ),
    ] = None
    otlp_traces_endpoint: Annotated[
        Key | None,
        OBSERVING("The same as a whole URL; also OTEL_EXPORTER_OTLP_TRACES_ENDPOINT.", "the former with /v1/traces"),
    ] = None
    trace_content: Annotated[
        bool, OBSERVING("Put into traces what was said: prompts, answers and the arguments of calls.")
    ] = False
    keep_traces: Annotated[
        Amount,
        OBSERVING(
            "Responses of which prompts, raw outputs and timings are kept in memory, for /v1/responses/{id}/trace; 0"
            " keeps none."
        ),
    ] = 0


def traces_url(base: str | None, whole: str | None) -> str | None:
    """None: nothing is traced. Raises StartupError."""
    url = whole if whole is not None or base is None else base.rstrip("/") + _TRACES
    if url is not None and not url.startswith(("http://", "https://")):
        raise StartupError("--otlp-endpoint is a URL that begins with http:// or https://.")
    return url
