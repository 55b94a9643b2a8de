"""The version of the installed package, read once: its metadata takes milliseconds to parse."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("antiphon")
