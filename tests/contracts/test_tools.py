"""Runs the contract suite of built-in tools against every registered tool.

`SETUPS` has one entry per tool, and one for each that a tool server can run: the local services that it needs on
loopback, a declaration, and calls that succeed in order. All tests are independent of the tool.

Covers `tools/base.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.config import Config
from antiphon.config.image_settings import ImageServiceSpec
from antiphon.core.image_generation import ImageRequest
from antiphon.image_services.fake_service import FakeImageService
from antiphon.plugins import load_reference
from antiphon.protocol.types.tools import (
    CodeInterpreterTool,
    ContainerAuto,
    ContainerReference,
    FileSearchTool,
    ImageGenerationTool,
    ShellTool,
    WebSearchTool,
)
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.service.attachments.attachments import Attachments
from antiphon.service.images import Images
from antiphon.testing.contracts import ToolContract
from antiphon.testing.tool_tests import SECRET, OpenSetup, ToolSetup
from antiphon.tools.base import BuiltInTool, ToolServices
from antiphon.tools.image_generation.tool import ImageGeneration
from antiphon.tools.registry import SERVED_TOOLS, TOOLS
from tests.egress.hosts import make_egress_client
from tests.oracles.responses import check_event
from tests.tools.code_interpreter.local_containers import make_shell, run_containers
from tests.tools.code_interpreter.local_containers import make_tool as make_code_interpreter
from tests.tools.file_search.library import Library, make_hit
from tests.tools.file_search.library import make_tool as make_file_search
from tests.tools.tool_server.local_tool_server import make_services, run_tool_server
from tests.tools.web_search.local_web import make_result, run_local_web
from tests.tools.web_search.local_web import make_tool as web_search

ON_SERVER = " on a tool server"
KINDS = TOOLS | {kind + ON_SERVER: path for kind, (_, path) in SERVED_TOOLS.items()}
UNCONFIGURED = ToolServices(config=Config(), egress=make_egress_client())
UNREACHABLE = make_services("http://127.0.0.1:9/mcp")


@asynccontextmanager
async def open_web_search_setup() -> AsyncIterator[ToolSetup]:
    async with run_local_web() as web:
        web.results = [make_result(f"{web.url}/notes.txt", "Notes", "How many there are.")]
        yield ToolSetup(
            built_in=web_search(web, key=SECRET),
            declaration=WebSearchTool(),
            calls=[
                ("web_search", {"query": "otters"}),
                ("web_open", {"id": "0"}),
                ("web_find", {"pattern": "otters"}),
            ],
            stall=lambda: setattr(web, "silent", True),
        )


@asynccontextmanager
async def open_file_search_setup() -> AsyncIterator[ToolSetup]:
    library = Library(make_hit("otters.txt", "Otters hold hands."), make_hit("fish.txt", "Fish swim."))
    yield ToolSetup(
        built_in=make_file_search(library),
        declaration=FileSearchTool(vector_store_ids=["vs_1"]),
        calls=[("file_search", {"queries": ["otters"]}), ("file_search", {"queries": ["otters", "fish"]})],
        stall=library.searchable.clear,
    )


@asynccontextmanager
async def open_code_interpreter_setup() -> AsyncIterator[ToolSetup]:
    async with run_containers() as containers:
        yield ToolSetup(
            built_in=make_code_interpreter(containers),
            declaration=CodeInterpreterTool(container=await containers.add()),
            calls=[
                ("code_interpreter", {"code": "print('otters')"}),
                ("code_interpreter", {"code": "open('/mnt/data/otters', 'w').write('3')"}),
            ],
            stall=containers.running.clear,
            argument="code",
        )


@asynccontextmanager
async def open_hosted_shell_setup() -> AsyncIterator[ToolSetup]:
    async with run_containers() as containers:
        yield ToolSetup(
            built_in=make_shell(containers),
            declaration=ShellTool(environment=ContainerReference(container_id=await containers.add())),
            calls=[
                ("shell", {"commands": ["echo otters"]}),
                ("shell", {"commands": ["printf 3 > otters", "exit 4"], "timeout_ms": 9000, "max_output_length": 5}),
            ],
            stall=containers.running.clear,
        )


@asynccontextmanager
async def open_image_generation_setup() -> AsyncIterator[ToolSetup]:
    images = Images([FakeImageService(ImageServiceSpec(url="fake", slots=1), make_egress_client())], queue=8)
    services = ToolServices(
        config=Config(), egress=make_egress_client(), images=images, load_images=Attachments().load_images
    )
    stalled: list[asyncio.Future[None]] = []

    async def occupy_service() -> None:
        async for _ in images.generate("other", ImageRequest(prompt="[fake silence]")):
            pass

    yield ToolSetup(
        built_in=ImageGeneration(services),
        declaration=ImageGenerationTool(),
        calls=[
            ("image_generation", {"prompt": "an otter"}),
            ("image_generation", {"prompt": "a hat", "action": "edit", "size": "256x512"}),
        ],
        stall=lambda: stalled.append(asyncio.ensure_future(occupy_service())),
    )
    for one in stalled:
        one.cancel()


@asynccontextmanager
async def open_server_setup(
    kind: str, declaration: Declaration, argument: str, calls: list[tuple[str, dict[str, Any]]]
) -> AsyncIterator[ToolSetup]:
    with run_tool_server() as server:
        built_in = load_class(kind)(make_services(server.url, token=SECRET))
        try:
            yield ToolSetup(
                built_in=built_in,
                declaration=declaration,
                calls=calls,
                stall=server.released.clear,
                argument=argument,
            )
        finally:
            await built_in.close()


SETUPS: dict[str, OpenSetup] = {"file_search": open_file_search_setup, "web_search": open_web_search_setup}
SETUPS |= {"code_interpreter": open_code_interpreter_setup, "hosted_shell": open_hosted_shell_setup}
SETUPS |= {"image_generation": open_image_generation_setup}
SERVED_CALLS: dict[str, tuple[Declaration, str, list[tuple[str, dict[str, Any]]]]] = {
    "code_interpreter": (
        CodeInterpreterTool(),
        "code",
        [("code_interpreter", {"code": "x = 41"}), ("code_interpreter", {"code": "print(x + 1)"})],
    ),
    "web_search": (
        WebSearchTool(),
        "",
        [("web_search", {"query": "otters"}), ("web_open", {"id": "0"}), ("web_find", {"pattern": "fish"})],
    ),
    "hosted_shell": (
        ShellTool(environment=ContainerAuto()),
        "",
        [("shell", {"commands": ["echo otters"]}), ("shell", {"commands": ["exit 4"], "timeout_ms": 9000})],
    ),
}
SETUPS |= {
    kind + ON_SERVER: partial(open_server_setup, kind + ON_SERVER, *served) for kind, served in SERVED_CALLS.items()
}


def load_class(kind: str) -> Callable[..., BuiltInTool]:
    made: Callable[..., BuiltInTool] = load_reference(KINDS[kind])
    return made


def make_unused(kind: str) -> BuiltInTool:
    return load_class(kind)(UNREACHABLE if kind.endswith(ON_SERVER) else UNCONFIGURED)


@asynccontextmanager
async def open_checked(kind: str) -> AsyncIterator[ToolSetup]:
    """Open the setup of a tool whose events are compared with the types of the openai package."""
    async with SETUPS[kind]() as setup:
        yield replace(setup, check_event=check_event)


def test_every_tool_has_a_setup() -> None:
    assert SETUPS.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_declaration_types_and_harmony_names_are_unique(kind: str) -> None:
    built_in = make_unused(kind)
    others = [make_unused(other) for other in TOOLS if other != built_in.kind]
    assert built_in.types
    assert not {*built_in.types} & {one for other in others for one in other.types}
    assert built_in.harmony not in {other.harmony for other in others} or not built_in.harmony
    assert all(
        recipient.startswith(f"{built_in.harmony}.") or recipient == built_in.harmony
        for recipient in built_in.recipients
    )
    assert bool(built_in.harmony) == bool(built_in.recipients)


@pytest.mark.parametrize("kind", KINDS)
class TestTool(ToolContract):
    @pytest.fixture
    def unconfigured(self, kind: str) -> BuiltInTool:
        return make_unused(kind)

    @pytest.fixture
    def open_setup(self, kind: str) -> OpenSetup:
        return partial(open_checked, kind)
