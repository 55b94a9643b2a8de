"""Writes what is expected of every recording anew: `python -m tests.golden.reasoning.rewrite [family …]`.

The difference is to be read.
"""

import sys

import msgspec

from antiphon.parsers.reasoning.formats import THOUGHTS
from tests.golden.reasoning.recordings import FOLDER, load, play


def main() -> None:
    for family in sys.argv[1:] or THOUGHTS:
        recordings = load(family)
        for recording in recordings:
            recording.expected = play(family, recording, [recording.output])
        if recordings:
            written = msgspec.json.format(msgspec.json.encode(recordings), indent=1)
            (FOLDER / f"{family}.json").write_bytes(written + b"\n")


if __name__ == "__main__":
    main()
