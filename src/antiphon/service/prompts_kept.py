"""Prompts that the operator keeps in a folder, for requests that name one: `prompt: {id, version, variables}`.

Filled once, from left to right: what a variable says is never looked at again, and becomes a part of an ordinary item,
like anything else that a client sends. The folder is read when the server starts and on SIGHUP.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from antiphon.core.prompt_template import Filling
from antiphon.core.prompt_template import Template as Template
from antiphon.errors import StartupError, UnknownPrompt, UnsupportedParameter
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.response import PromptRef
from antiphon.service.prompt_files import Versions, newest, read_folder

_SHOWN: Final = 64  # characters of a name that was sent
_NONE = "This server keeps no prompts (--prompt-dir): send the text in `instructions` and `input`."

log = logging.getLogger(__name__)


class KeptPrompts:
    """`folder` None: there are none."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._kept: Mapping[str, Versions] = {} if folder is None else read_folder(folder)

    async def read_again(self) -> None:
        """What does not fit is said in the log, and nothing changes."""
        if self._folder is None:
            return
        try:
            self._kept = await asyncio.to_thread(read_folder, self._folder)
        except StartupError as error:
            log.error("The prompts are left as they were: %s", error)
        else:
            log.info("The prompts were read again: %d", len(self._kept))

    def filled(self, decoded: Decoded) -> Decoded:
        """The request with what its prompt says, ahead of its own input."""
        request = decoded.request
        ref = request.prompt
        assert ref is not None
        if self._folder is None:
            raise UnsupportedParameter(_NONE, param="prompt")
        version, template = self._found(ref)
        filling = Filling(template, ref.variables or {})
        said = {
            "prompt": replace(ref, version=version),
            "input": [*filling.items(), *request.input],
            "instructions": request.instructions or filling.instructions(),
            "model": request.model or template.model,
        }
        named = frozenset(name for name, value in said.items() if value)
        return replace(decoded, request=replace(request, **said), sent=decoded.sent | named)

    def _found(self, ref: PromptRef) -> tuple[str, Template]:
        versions = self._kept.get(ref.id)
        if versions is None:
            raise UnknownPrompt(f"There is no prompt {ref.id[:_SHOWN]!r}.", param="prompt.id")
        version = newest(versions) if ref.version is None else ref.version
        if version not in versions:
            known = ", ".join(_first(versions))
            raise UnknownPrompt(
                f"The prompt {ref.id[:_SHOWN]!r} has no version {version[:_SHOWN]!r}. It has: {known}.",
                param="prompt.version",
            )
        return version, versions[version]


def _first(versions: Versions) -> Iterator[str]:
    for number, name in enumerate(versions):
        if number == 10:
            yield "…"
            return
        yield name
