"""Paths of the server's OpenAPI document."""

from collections.abc import Iterator
from typing import Any

_STREAM_ONLY = {"text/event-stream"}


def list_finite(paths: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the paths whose replies end, with their operations. A path that only streams is followed without an end."""
    for path, operations in paths.items():
        replies = [operation["responses"]["200"].get("content", {}) for operation in operations.values()]
        if not any(content.keys() == _STREAM_ONLY for content in replies):
            yield path, operations
