"""Contracts of plug-ins as test classes. A package proves itself with a subclass of one:

    class TestEcho(EngineContract):
        settings: ClassVar = {"engine": "echo"}

The attributes of a class say what is tested. A fixture of the subclass replaces one of the contract that has its name.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from antiphon.config import Config
from antiphon.core.prompt import Json
from antiphon.egress import EgressClient, EgressPolicy
from antiphon.engines.base import Engine
from antiphon.engines.factory import build_engine
from antiphon.plugins import find_plugin
from antiphon.stores.registry import make_store
from antiphon.stores.sql.store import Store
from antiphon.testing import call_format_tests, engine_tests, search_tests, tool_tests
from antiphon.testing.call_format_tests import SEEDS, Corpus
from antiphon.testing.rows.response_rows import TTL, Clock
from antiphon.testing.search_tests import SearchService
from antiphon.testing.store_tests import (
    api_keys,
    approvals,
    chains,
    containers,
    conversations,
    files,
    images,
    large_rows,
    leases,
    lists,
    response_log,
    responses,
    retention,
    shared_values,
    skills,
    tool_outputs,
    usage,
    vector_index,
    vector_stores,
)
from antiphon.testing.suite import collect_tests
from antiphon.testing.tool_tests import OpenSetup, ToolSetup
from antiphon.tools.base import BuiltInTool, ToolServices
from antiphon.tools.registry import TOOLS


class _Contract:
    """Runs asynchronous tests and fixtures on asyncio."""

    # named here, since the plug-in of anyio does not look into static methods
    pytestmark: ClassVar = [pytest.mark.anyio, pytest.mark.usefixtures("anyio_backend")]

    @pytest.fixture(scope="class")
    @classmethod
    def anyio_backend(cls) -> str:
        return "asyncio"


@collect_tests(engine_tests)
class EngineContract(_Contract):
    """The contract of `antiphon.engines.base.Engine`. The engine has two slots if that can be configured."""

    settings: ClassVar[Mapping[str, Any]] = {}  # as of `antiphon serve`, by name
    counts_cached_tokens: ClassVar[bool] = False  # it reports how much of a prompt was found in its cache

    @pytest.fixture
    def counts_cache(self) -> bool:
        return self.counts_cached_tokens

    @pytest.fixture(scope="class")
    @classmethod
    async def engine(cls) -> AsyncIterator[Engine]:
        engine = build_engine(Config.from_settings(**cls.settings))
        await engine.open()
        yield engine
        await engine.close()


@collect_tests(call_format_tests)
class CallFormatContract(_Contract):
    """The contract of a tool-call format, `antiphon.parsers.calls.base.CallFrame`."""

    format: ClassVar[str]
    outputs: ClassVar[Sequence[str]]  # real ones of the model: several calls, a truncated call, text around calls
    tools: ClassVar[Mapping[str, Json]] = {}  # the schemas of the tools that they call, by name

    @pytest.fixture
    def corpus(self) -> Corpus:
        return Corpus(format=self.format, outputs=self.outputs, tools=self.tools)

    @pytest.fixture(params=range(SEEDS))
    def seed(self, request: pytest.FixtureRequest) -> int:
        seed: int = request.param
        return seed


@collect_tests(tool_tests)
class ToolContract(_Contract):
    """The contract of `antiphon.tools.base.BuiltInTool`."""

    name: ClassVar[str]  # of its entry point

    def make_setup(self) -> AbstractAsyncContextManager[ToolSetup]:
        """Return a configured tool with calls that succeed, and with local services instead of those on the network."""
        raise NotImplementedError

    @pytest.fixture
    def open_setup(self) -> OpenSetup:
        return self.make_setup

    @pytest.fixture
    def unconfigured(self) -> BuiltInTool:
        services = ToolServices(config=Config(), egress=EgressClient(EgressPolicy(())))
        make: Any = find_plugin("tools", self.name, TOOLS)
        tool: BuiltInTool = make(services)
        return tool


@collect_tests(search_tests)
class SearchContract(_Contract):
    """The contract of `antiphon.tools.web_search.providers.SearchProvider`."""

    url: ClassVar[str]  # as in --web-search-url, with {address} for a local service
    reply: ClassVar[bytes]  # a reply of the service with at least one result

    @pytest.fixture
    def service(self) -> SearchService:
        return SearchService(self.url, self.reply)


@collect_tests(
    *(api_keys, approvals, chains, containers, conversations, files, images, large_rows, leases, lists, response_log),
    *(responses, retention, shared_values, skills, tool_outputs, usage, vector_index, vector_stores),
)
class StoreContract(_Contract):
    """The contract of `antiphon.stores.sql.store.Store`. Each test gets an empty store."""

    location: ClassVar[str]  # as in --store, with {folder} for an empty folder

    @pytest.fixture
    def store_location(self, tmp_path: Path) -> str:
        return self.location.replace("{folder}", str(tmp_path))

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    async def store(self, store_location: str, clock: Clock) -> AsyncIterator[Store]:
        store = make_store(store_location, TTL, clock)
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def other_store(self, store_location: str, store: Store, clock: Clock) -> AsyncIterator[Store]:
        """A second store over the same data, as another process opens it; the memory store itself, which cannot be
        shared.
        """
        if store_location == "memory":
            yield store
            return
        other_store = make_store(store_location, TTL, clock)
        await other_store.open()
        yield other_store
        await other_store.close()
