"""Rewrites the expected items of every case: `python -m tests.golden.harmony.rewrite`. Review the resulting diff."""

import msgspec

from tests.golden.harmony.cases import FILES, FOLDER, encode_tokens, load_cases, run_case, summarise_output


def main() -> None:
    for file in FILES:
        cases = load_cases(file)
        for case in cases:
            response, case.reasoning_tokens = run_case(case, [encode_tokens(case.output)])
            case.items = summarise_output(response)
        written = msgspec.json.format(msgspec.json.encode(cases), indent=1)
        (FOLDER / f"{file}.json").write_bytes(written + b"\n")


if __name__ == "__main__":
    main()
