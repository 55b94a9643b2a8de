"""The command line: `antiphon serve · chat · models · connect · pull · db · doctor · keys · bench · version`."""

from antiphon.cli.commands import main

__all__ = ["main"]
