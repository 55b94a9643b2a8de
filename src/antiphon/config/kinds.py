"""Kinds of values that settings have, wherever they are given."""

from typing import Annotated

from msgspec import Meta

Name = Annotated[str, Meta(min_length=1)]
Key = Annotated[str, Meta(pattern=r"^[!-~]+\Z")]  # what fits into a header
Pair = Annotated[str, Meta(pattern=r"^[^=]+=[^=]")]
Count = Annotated[int, Meta(ge=1)]
# Whose something is: a name that is safe in a path, a header and a label of a metric.
Tenant = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}\Z")]
