"""`python -m antiphon` runs the `antiphon` command."""

from antiphon.cli import main

main()
