"""Rewrites the expected result of every recording: `python -m tests.golden.reasoning.rewrite [family …]`.

Review the resulting diff.
"""

import sys

import msgspec

from antiphon.parsers.reasoning import REASONING_FORMATS
from tests.golden.reasoning.recordings import FOLDER, load_recordings, parse_recording


def main() -> None:
    for family in sys.argv[1:] or REASONING_FORMATS:
        recordings = load_recordings(family)
        for recording in recordings:
            recording.expected = parse_recording(family, recording, [recording.output])
        if recordings:
            written = msgspec.json.format(msgspec.json.encode(recordings), indent=1)
            (FOLDER / f"{family}.json").write_bytes(written + b"\n")


if __name__ == "__main__":
    main()
