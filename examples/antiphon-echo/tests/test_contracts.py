"""The plug-ins of this package pass the contracts of Antiphon."""

from antiphon.testing.contracts import CallFormatContract, EngineContract


class TestEngine(EngineContract):
    settings = {"engine": "echo"}


class TestCallFormat(CallFormatContract):
    format = "echo"
    outputs = [
        'Let me see. [CALL]{"name": "look", "arguments": {"at": "it"}}[/CALL]',
        '[CALL]{"name": "look", "arguments": {}}[/CALL][CALL]{"name": "go", "arguments": {}}[/CALL]',
        '[CALL]{"name": "look", "arguments": {"at": "i',
    ]
