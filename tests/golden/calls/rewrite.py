"""Rewrites the expected result of every recording: `python -m tests.golden.calls.rewrite [format …]`.

Review the resulting diff.
"""

import sys

import msgspec

from antiphon.parsers.calls.registry import FORMATS
from tests.golden.calls.recordings import FOLDER, load_recordings, parse_recording


def main() -> None:
    for form in sys.argv[1:] or FORMATS:
        recordings = load_recordings(form)
        for recording in recordings:
            recording.expected = parse_recording(form, recording, [recording.output])
        written = msgspec.json.format(msgspec.json.encode(recordings), indent=1)
        (FOLDER / f"{form}.json").write_bytes(written + b"\n")


if __name__ == "__main__":
    main()
