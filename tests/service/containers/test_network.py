"""The network policies of containers: what the operator allows, which containers are reused, and what code reaches."""

from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.egress import EgressClient
from antiphon.errors import BadRequest, SandboxUnavailable, StartupError, UnsupportedParameter
from antiphon.protocol.types.containers import CreateContainer
from antiphon.protocol.types.tools import AutoContainer, NetworkAllowlist, NetworkDisabled
from antiphon.sandbox.base import PrintedText
from antiphon.sandbox.local import LocalSandbox
from antiphon.service.containers.code_runner import CodeRunner
from antiphon.service.containers.live_containers import LiveContainers
from antiphon.service.containers.network import ContainerNetwork, to_policy
from antiphon.service.files import Files
from antiphon.testing.rows.response_rows import TENANT
from tests.egress.hosts import FakeResolver, make_egress_client, respond_with, run_host
from tests.service.containers.test_code_runner import resolve
from tests.support.sandboxes import run_sandbox

pytestmark = pytest.mark.anyio
OPERATOR = ("open.example", "*.pypi.example", "second.example")


def allow(*domains: str, **fields: Any) -> NetworkAllowlist:
    return NetworkAllowlist(allowed_domains=[*domains], **fields)


def make_live(live: LiveContainers, files: Files, *domains: str, sandbox: LocalSandbox | None = None) -> LiveContainers:
    settings = replace(live.settings, container_allowed_domains=domains)
    resolver = FakeResolver(open_example=[["127.0.0.1"]], second_example=[["127.0.0.1"]])
    egress = make_egress_client("open.example", "second.example", resolver=resolver)
    return LiveContainers(live.store, files, sandbox or live.sandbox, settings, egress)


@pytest.fixture
async def networked(live: LiveContainers, files: Files) -> LiveContainers:
    if (level := (await live.sandbox.status()).level) != "namespaces":
        pytest.skip(f"permission: containers have no network at the level {level}")
    return make_live(live, files, *OPERATOR)


async def fetch(live: LiveContainers, container_id: str, url: str) -> str:
    code = f"import urllib.request\nprint(urllib.request.urlopen({url!r}, timeout=10).read())"
    events = [event async for event in CodeRunner(live).run(TENANT, container_id, code)]
    return "".join(event.text for event in events if isinstance(event, PrintedText))


@pytest.mark.shows("E6.3")
@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (allow("open.example", "other.example"), "allowed_domains[1]"),
        (allow("pypi.example"), "allowed_domains[0]"),
        (allow("*.example"), "allowed_domains[0]"),
        (allow("*"), "allowed_domains[0]"),
        (allow("127.0.0.1"), "allowed_domains[0]"),
        (allow("open.example:443"), "allowed_domains[0]"),
        (allow(), "allowed_domains"),
        (
            allow("open.example", domain_secrets=[{"domain": "open.example", "name": "K", "value": "v"}]),
            "domain_secrets",
        ),
    ],
)
def test_a_policy_beyond_the_operator_s_is_refused_by_name(policy: NetworkAllowlist, field: str) -> None:
    network = ContainerNetwork(EgressClient(), OPERATOR)
    with pytest.raises(BadRequest) as refused:
        network.read_domains(policy, "container.")
    assert refused.value.param == f"container.network_policy.{field}"
    assert refused.value.status == 400


def test_a_policy_within_the_operator_s_is_stored_in_its_usual_spelling() -> None:
    network = ContainerNetwork(EgressClient(), OPERATOR)
    domains = network.read_domains(allow("Open.Example", "files.pypi.example", "*.x.pypi.example", "open.example."), "")
    assert domains == "*.x.pypi.example files.pypi.example open.example"
    assert to_policy(domains) == allow("*.x.pypi.example", "files.pypi.example", "open.example")
    assert network.read_domains(NetworkDisabled(), "") == network.read_domains(None, "") == ""
    assert to_policy("") == NetworkDisabled()
    assert ContainerNetwork(EgressClient(), ("*",)).read_domains(allow("any.example"), "") == "any.example"


def test_an_operator_s_entry_that_is_no_domain_is_an_error_at_the_start() -> None:
    with pytest.raises(StartupError, match="--container-allowed-domains: '10/8' is neither"):
        ContainerNetwork(EgressClient(), ("10/8",))


async def test_without_domains_of_the_operator_or_at_another_level_there_is_no_network(
    live: LiveContainers, files: Files
) -> None:
    request = CreateContainer(name="box", network_policy=allow("open.example"))
    with pytest.raises(UnsupportedParameter, match="--container-allowed-domains") as off:
        await live.create(TENANT, request)
    assert off.value.param == "network_policy"
    async with run_sandbox("landlock") as weaker:
        try:
            await weaker.status()
        except SandboxUnavailable as error:
            pytest.skip(f"permission: no sandbox of this level: {error}")
        with pytest.raises(UnsupportedParameter, match="needs the sandbox level namespaces") as refused:
            await make_live(live, files, *OPERATOR, sandbox=weaker).create(TENANT, request)
        assert refused.value.param == "network_policy"


@pytest.mark.shows("E6.9")
async def test_code_reaches_what_both_the_policy_and_the_operator_allow(
    networked: LiveContainers, live: LiveContainers, files: Files
) -> None:
    request = CreateContainer(name="box", network_policy=allow("open.example"))
    container = (await networked.create(TENANT, request)).id
    async with run_host(respond_with(b"hello")) as host:
        assert await fetch(networked, container, f"http://open.example:{host.port}/") == "b'hello'\n"
        assert "403" in await fetch(networked, container, f"http://second.example:{host.port}/")
        narrower = make_live(live, files, "second.example")
        assert "403" in await fetch(narrower, container, f"http://open.example:{host.port}/")
        assert host.connects == 1


@pytest.mark.shows("E6.9")
async def test_a_container_with_another_network_is_not_reused(networked: LiveContainers) -> None:
    runner = CodeRunner(networked)
    wanted = AutoContainer(network_policy=allow("open.example", "second.example"))
    first = await resolve(runner, wanted, [])
    same = AutoContainer(network_policy=allow("second.example", "OPEN.example"))
    assert await resolve(runner, same, [first]) == first
    assert await resolve(runner, AutoContainer(), [first]) == first
    for other in (allow("open.example"), NetworkDisabled()):
        assert await resolve(runner, AutoContainer(network_policy=other), [first]) != first
