"""The requests that real clients made; see tests/recordings/README.md."""

import json
from collections.abc import Iterator
from typing import Any

from tests.support.paths import RECORDINGS


def creates() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every body of a `POST /responses`, and every `response.create` frame, with a name."""
    for path in sorted(RECORDINGS.glob("*.json")):
        for number, request in enumerate(json.loads(path.read_bytes())):
            if request["method"] == "POST" and request["tail"] == "responses":
                yield f"{path.stem}-{number}", request["body"]
            for frame in request.get("frames", ()):
                if "client" in frame:
                    yield f"{path.stem}-{number}-frame", frame["client"]
