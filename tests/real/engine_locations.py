"""The real engines that `make test-engines` names: by their URLs, or by the folders that they are started from."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support import server_process
from tools import sglang_cpu, vllm_cpu
from tools.engine_install import NAME, EngineFolder, serving


class Named:
    """One of them; `variable` says where it is."""

    def __init__(self, variable: str, folder: type[EngineFolder]) -> None:
        self.kind = folder.kind
        self._variable = variable
        self._folder = folder

    def __bool__(self) -> bool:
        """Whether tests with it are wanted."""
        return bool(self.place)

    @property
    def place(self) -> str:
        return os.environ.get(self._variable, "")

    @property
    def runs(self) -> bool:
        """Already, and goes on."""
        return "://" in self.place

    def missing(self) -> str:
        """Why there is none; nothing if there is one."""
        if not self:
            return f"{self._variable} names none: `make test-engines` does"
        if not self.runs and not self._folder(Path(self.place)).ready:
            return f"there is none in {self.place}: `make {self.kind}` sets one up"
        return ""

    @contextlib.contextmanager
    def running(self, model: str = NAME) -> Iterator[str]:
        """Its URL, as --engine takes it; it is stopped only if it was started here."""
        if self.runs:
            yield self.place
            return
        with serving(self._folder(Path(self.place)), model=model) as url:
            yield url


@contextlib.contextmanager
def client_of(engine: Named, model: str) -> Iterator[OpenAI]:
    """Of a server in front of an engine that is started for this model."""
    if reason := engine.missing() or (
        f"it is a folder of {engine.kind} that it is started from" if engine.runs else ""
    ):
        pytest.skip(reason)
    with engine.running(model) as url, server_process.serving("--engine", url) as server:
        yield OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=120)


VLLM = Named("TEST_VLLM", vllm_cpu.Folder)
SGLANG = Named("TEST_SGLANG", sglang_cpu.Folder)
REAL = {one.kind: one for one in (VLLM, SGLANG)}
