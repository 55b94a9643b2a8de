"""Writes what is expected of every recording anew: `python -m tests.golden.calls.rewrite [format …]`.

The difference is to be read.
"""

import sys

import msgspec

from antiphon.parsers.calls.registry import FORMATS
from tests.golden.calls.recordings import FOLDER, load, play


def main() -> None:
    for form in sys.argv[1:] or FORMATS:
        recordings = load(form)
        for recording in recordings:
            recording.expected = play(form, recording, [recording.output])
        written = msgspec.json.format(msgspec.json.encode(recordings), indent=1)
        (FOLDER / f"{form}.json").write_bytes(written + b"\n")


if __name__ == "__main__":
    main()
