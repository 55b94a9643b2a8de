"""The command line: `antiphon serve · chat · models · pull · db · bench · version`."""

from antiphon.cli.commands import main

__all__ = ["main"]
