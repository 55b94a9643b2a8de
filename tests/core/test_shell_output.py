"""What models read of a command's output."""

import pytest

from antiphon.core.shell_output import render_shell_output
from antiphon.protocol.types.items import ExitOutcome, ShellOutput, TimeoutOutcome


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (ShellOutput(stdout="a", stderr="b", outcome=ExitOutcome(exit_code=2)), "a\nb\n[exit code 2]"),
        (ShellOutput(stdout="", stderr="", outcome=TimeoutOutcome()), "[timed out]"),
    ],
)
def test_streams_are_followed_by_the_outcome(output: ShellOutput, expected: str) -> None:
    assert render_shell_output(output) == expected
