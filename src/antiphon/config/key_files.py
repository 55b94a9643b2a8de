"""Files with keys: text, named by a flag that every complaint repeats, and never a line of what is in them."""

from pathlib import Path

from antiphon.errors import StartupError


def read_key_file(path: Path, flag: str, expected: str) -> str:
    """Raises StartupError."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise StartupError(f"{path}, which {flag} names, cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise StartupError(f"{path}, which {flag} names, is not a text; {expected}.") from None
