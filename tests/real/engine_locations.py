"""The real engines that `make test-engines` configures: by URL, or by the folder that they are started from."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support import server_process
from tools import sglang_cpu, vllm_cpu
from tools.engine_install import MODEL_NAME, EngineFolder, run_engine


class EngineLocation:
    """One real engine. The environment variable holds its URL or its folder."""

    def __init__(self, variable: str, folder: type[EngineFolder]) -> None:
        self.kind = folder.kind
        self._variable = variable
        self._folder = folder

    def __bool__(self) -> bool:
        """Whether tests with this engine are requested."""
        return bool(self.address)

    @property
    def address(self) -> str:
        return os.environ.get(self._variable, "")

    @property
    def is_running(self) -> bool:
        """Whether the variable is the URL of an engine that is already running."""
        return "://" in self.address

    def explain_missing(self) -> str:
        """Return why the engine cannot be used; empty if it can."""
        if not self:
            return f"{self._variable} is not set: `make test-engines` sets it"
        if not self.is_running and not self._folder(Path(self.address)).is_ready:
            return f"no engine in {self.address}: `make {self.kind}` installs one"
        return ""

    @contextlib.contextmanager
    def run(self, model: str = MODEL_NAME) -> Iterator[str]:
        """Yield the URL for --engine. The engine is stopped afterwards only if it was started here."""
        if self.is_running:
            yield self.address
            return
        with run_engine(self._folder(Path(self.address)), model=model) as url:
            yield url


@contextlib.contextmanager
def open_client(engine: EngineLocation, model: str) -> Iterator[OpenAI]:
    """Yield a client of a server in front of an engine that is started with this model."""
    if reason := engine.explain_missing() or (
        f"the engine has to be given as a folder of {engine.kind}, to start it with another model"
        if engine.is_running
        else ""
    ):
        pytest.skip(f"real engine: {reason}")
    with engine.run(model) as url, server_process.run_server("--engine", url) as server:
        yield OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=120)


VLLM = EngineLocation("TEST_VLLM", vllm_cpu.VllmFolder)
SGLANG = EngineLocation("TEST_SGLANG", sglang_cpu.SglangFolder)
REAL = {one.kind: one for one in (VLLM, SGLANG)}
