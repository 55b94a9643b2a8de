"""Writes the items of every case anew: `python -m tests.golden.harmony.rewrite`. The difference is to be read."""

import msgspec

from tests.golden.harmony.cases import FILES, FOLDER, load, play, tokens, told


def main() -> None:
    for file in FILES:
        cases = load(file)
        for case in cases:
            response, case.reasoning_tokens = play(case, [tokens(case.output)])
            case.items = told(response)
        written = msgspec.json.format(msgspec.json.encode(cases), indent=1)
        (FOLDER / f"{file}.json").write_bytes(written + b"\n")


if __name__ == "__main__":
    main()
