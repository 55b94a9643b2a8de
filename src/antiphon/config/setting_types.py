"""Value types of settings."""

from typing import Annotated, Literal

from msgspec import Meta

_PAIR = r"^[^=]+=[^=]"
_LABELLED = r"^[^=]+=https?://"
_TOOL_SERVER = r"^(python|browser|container)=https?://"
_HOST = r"^(\*|[A-Za-z0-9._:\[\]-]+)\Z"
_WORKER = r"^https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?\Z"
_ORIGIN = r"^(null|[A-Za-z][A-Za-z0-9+.-]*://[^\s/]+/?)\Z"

# Description of the expected text by pattern; texts with another pattern must be valid in a header.
EXPECTED_TEXTS = {
    _PAIR: "NAME=MODEL", _LABELLED: "LABEL=URL", _HOST: "a host name", _ORIGIN: "SCHEME://HOST:PORT",
    _WORKER: "http://HOST:PORT or https://HOST:PORT", _TOOL_SERVER: "python=URL, browser=URL or container=URL",
}  # fmt: skip

Name = Annotated[str, Meta(min_length=1)]
Key = Annotated[str, Meta(pattern=r"^[!-~]+\Z")]  # valid as a header value
Pair = Annotated[str, Meta(pattern=_PAIR)]
Count = Annotated[int, Meta(ge=1)]
# Name of a tenant: safe in a path, a header and a metric label.
Tenant = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}\Z")]

Amount = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0)]
Interval = Annotated[float, Meta(ge=0)]
Rate = Annotated[float, Meta(gt=0)]
Level = Literal["chat", "text", "tokens", "harmony"]
Severity = Literal["debug", "info", "warning", "error"]
Labelled = Annotated[str, Meta(pattern=_LABELLED)]
ToolServerUrl = Annotated[str, Meta(pattern=_TOOL_SERVER)]
Host = Annotated[str, Meta(pattern=_HOST)]
WorkerAddress = Annotated[str, Meta(pattern=_WORKER)]
Origin = Annotated[str, Meta(pattern=_ORIGIN)]
