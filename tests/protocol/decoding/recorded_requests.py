"""Requests recorded from real clients; see tests/recordings/README.md."""

import json
from collections.abc import Iterator
from typing import Any

from tests.support.paths import RECORDINGS


def iter_create_requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a name and the body of every `POST /responses` and of every `response.create` frame."""
    for path in sorted(RECORDINGS.glob("*.json")):
        for number, request in enumerate(json.loads(path.read_bytes())):
            if request["method"] == "POST" and request["tail"] == "responses":
                yield f"{path.stem}-{number}", request["body"]
            for frame in request.get("frames", ()):
                if "client" in frame:
                    yield f"{path.stem}-{number}-frame", frame["client"]
