"""Kinds of values that settings have, wherever they are given."""

from typing import Annotated, Literal

from msgspec import Meta

_PAIR = r"^[^=]+=[^=]"
_LABELLED = r"^[^=]+=https?://"
_HOST = r"^(\*|[A-Za-z0-9._:\[\]-]+)\Z"
_ORIGIN = r"^(null|[A-Za-z][A-Za-z0-9+.-]*://[^\s/]+/?)\Z"

# What is expected of a text, by its pattern; all others have to fit into a header.
WORDS = {_PAIR: "NAME=MODEL", _LABELLED: "LABEL=URL", _HOST: "the name of a host", _ORIGIN: "SCHEME://HOST:PORT"}

Name = Annotated[str, Meta(min_length=1)]
Key = Annotated[str, Meta(pattern=r"^[!-~]+\Z")]  # what fits into a header
Pair = Annotated[str, Meta(pattern=_PAIR)]
Count = Annotated[int, Meta(ge=1)]
# Whose something is: a name that is safe in a path, a header and a label of a metric.
Tenant = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}\Z")]

Amount = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0)]
Interval = Annotated[float, Meta(ge=0)]
Rate = Annotated[float, Meta(gt=0)]
Level = Literal["chat", "text", "tokens", "harmony"]
Severity = Literal["debug", "info", "warning", "error"]
Labelled = Annotated[str, Meta(pattern=_LABELLED)]
Host = Annotated[str, Meta(pattern=_HOST)]
Origin = Annotated[str, Meta(pattern=_ORIGIN)]
