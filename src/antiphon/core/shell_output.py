"""Output of shell commands as models read it."""

from antiphon.protocol.types.items import ExitOutcome, ShellOutput


def render_shell_output(output: ShellOutput) -> str:
    outcome = f"exit code {output.outcome.exit_code}" if isinstance(output.outcome, ExitOutcome) else "timed out"
    return "\n".join([text for text in (output.stdout, output.stderr, f"[{outcome}]") if text])
