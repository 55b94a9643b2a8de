"""Validation of declarations of MCP servers. No connection is opened.

Covers `core/mcp_rules.py` and `tools/mcp/client.py`.
"""

from typing import Any

import pytest
from msgspec import UNSET

from antiphon.config.tool_settings import McpServerSpec
from antiphon.egress import EgressClient, EgressPolicy
from antiphon.errors import BadRequest, StartupError
from antiphon.protocol.types.tools import ApprovalRules, McpTool, ToolNames
from antiphon.tools.mcp.client import McpClient
from antiphon.tools.mcp.servers import McpSettings, resolve_server

LABELS = {
    "notes": McpServerSpec(label="notes", command="notes-server", require_approval="always"),
    "wiki": McpServerSpec(
        label="wiki", url="http://10.0.0.7/mcp", headers={"X-Team": "blue"}, authorization="wiki-token"
    ),
}
SECRET = "do-not-repeat-me"


def _make_client(**settings: Any) -> McpClient:
    return McpClient(McpSettings(servers=LABELS, **settings), EgressClient(EgressPolicy(["10.9.0.0/16"])))


def _expect_error(mcp: McpClient | None = None, **declared: Any) -> tuple[str | None, str]:
    with pytest.raises(BadRequest) as raised:
        (mcp or _make_client()).check(McpTool(**{"server_label": "s", **declared}), "tools[3]")
    return raised.value.param, raised.value.message


@pytest.mark.parametrize(
    "url",
    [
        "stdio:notes-server", "file:///etc/passwd", "gopher://example.com/", "unix:///run/docker.sock",
        "mcp.example.com",
        "http://user:pass@example.com/", "http://0x7f000001/", "http://2130706433/", "http://[::ffff:127.0.0.1]/",
        "http://127.0.0.1:3001/mcp", "http://localhost:3001/mcp", "http://a.localhost/", "http://10.0.0.1/",
        "http://169.254.169.254/latest", "http://192.168.1.1/", "http://[::1]/", "http://[fd00::1]/", "http://0.0.0.0/",
        "https://93.184.215.14:6379/", "",
    ],
)  # fmt: skip
def test_a_forbidden_url_is_rejected_with_its_param(url: str) -> None:
    param, _ = _expect_error(server_url=url)
    assert param == "tools[3].server_url"


@pytest.mark.shows("E.11")
def test_a_private_address_is_rejected_with_the_flag_that_allows_it() -> None:
    _, message = _expect_error(server_url="http://10.0.0.1:9000/mcp")
    assert message.endswith("Its operator can change it with --allow-egress 10.0.0.1:9000.")


@pytest.mark.parametrize("url", ["https://example.com/mcp", "http://example.com:3001/mcp", "http://10.9.1.1/mcp"])
def test_public_urls_and_allowed_addresses_are_accepted(url: str) -> None:
    _make_client().check(McpTool(server_label="s", server_url=url), "tools[0]")


@pytest.mark.shows("E.12")
@pytest.mark.parametrize("url", ["http://127.0.0.1:3001/mcp", "http://localhost:3001/mcp", "http://[::1]:3001/"])
def test_loopback_is_accepted_by_a_local_server(url: str) -> None:
    _make_client(at_home=True).check(McpTool(server_label="s", server_url=url), "tools[0]")
    assert _expect_error(_make_client(at_home=True), server_url="http://10.0.0.1/")[0] == "tools[3].server_url"


def test_a_server_needs_a_url_or_a_configured_label() -> None:
    assert _expect_error() == (
        "tools[3].server_url",
        "There is no server_url, and no MCP server with the label 's' is set up here (notes, wiki).",
    )
    _make_client().check(McpTool(server_label="notes"), "tools[0]")


@pytest.mark.parametrize("field", ["connector_id", "tunnel_id"])
def test_connectors_and_tunnels_are_rejected_with_their_param(field: str) -> None:
    declared: dict[str, Any] = {field: "connector_gmail"}
    assert _expect_error(**declared)[0] == f"tools[3].{field}"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "a"}, {"content-length": "1"}, {"Transfer-Encoding": "chunked"}, {"Connection": "close"},
        {"Proxy-Authorization": "x"}, {"Upgrade": "h2c"}, {"Mcp-Session-Id": "x"}, {"Accept": "*/*"}, {"Bad Name": "x"},
        {"": "x"}, {"X": f"{SECRET}\r\nY: 1"}, {"X": f"{SECRET}\u00e9"}, {"X": f" {SECRET}"}, {"a": "1", "A": "2"},
        {f"X-{number}": "1" for number in range(65)}, {"X": SECRET * 2000},
    ],
)  # fmt: skip
def test_forbidden_headers_are_rejected_without_showing_their_values(headers: dict[str, str]) -> None:
    param, message = _expect_error(server_url="https://example.com", headers=headers)
    assert param == "tools[3].headers"
    assert SECRET not in message


def test_repeated_or_invalid_authorization_is_rejected() -> None:
    twice = _expect_error(server_url="https://example.com", authorization=SECRET, headers={"authorization": SECRET})
    assert twice == ("tools[3].headers", "Authorization is given twice: in headers, and by itself.")
    assert _expect_error(server_url="https://example.com", authorization="a\nb")[0] == "tools[3].authorization"


def test_a_program_accepts_no_authorization() -> None:
    assert _expect_error(server_label="notes", authorization=SECRET)[0] == "tools[3].authorization"


def test_a_token_without_a_scheme_is_sent_as_bearer() -> None:
    settings = McpSettings()
    for token, header in (("abc", "Bearer abc"), ("Basic abc", "Basic abc"), ("bearer abc", "bearer abc")):
        server = resolve_server(
            McpTool(server_label="s", server_url="https://a.example", authorization=token), settings
        )
        assert server.headers == {"authorization": header}


def test_headers_of_the_operator_override_those_of_the_client() -> None:
    declared = McpTool(server_label="wiki", authorization="mine", headers={"x-team": "red", "X-User": "me"})
    server = resolve_server(declared, McpSettings(servers=LABELS))
    assert server.headers == {"authorization": "Bearer wiki-token", "x-team": "blue", "x-user": "me"}


def test_a_credential_of_the_operator_is_not_sent_to_a_url_of_the_client() -> None:
    declared = McpTool(server_label="wiki", server_url="https://evil.example/mcp")
    server = resolve_server(declared, McpSettings(servers=LABELS))
    assert (server.url, server.headers, server.is_configured) == ("https://evil.example/mcp", {}, False)


def test_no_representation_shows_a_credential() -> None:
    declared = McpTool(server_label="s", server_url="https://example.com", authorization=SECRET, headers={"X": SECRET})
    server = resolve_server(declared, McpSettings())
    assert SECRET not in f"{server!r} {declared!r} {LABELS['wiki']!r} {server.key!r}"
    assert server.scrub(f"You sent Bearer {SECRET}.") == "You sent Bearer …."


@pytest.mark.parametrize(
    ("label", "requested", "default", "effective"),
    [
        ("s", UNSET, "never", "never"),
        ("s", UNSET, "always", "always"),
        ("s", "never", "always", "never"),
        ("notes", UNSET, "never", "always"),
        ("notes", "never", "never", "always"),
        ("wiki", "never", "always", "never"),
    ],
)
def test_an_approval_rule_of_always_by_the_operator_overrides_the_client(
    label: str, requested: Any, default: Any, effective: str
) -> None:
    declared = McpTool(server_label=label, require_approval=requested)
    assert _make_client(require_approval=default).get_approval(declared) == effective


def test_a_description_comes_from_the_request_or_else_from_the_operator() -> None:
    spec = McpServerSpec(label="notes", command="notes-server", description="What we wrote down.")
    mcp = McpClient(McpSettings(servers={"notes": spec}), EgressClient())
    assert mcp.get_description(McpTool(server_label="notes")) == "What we wrote down."
    assert mcp.get_description(McpTool(server_label="notes", server_description="Mine.")) == "Mine."
    assert mcp.get_description(McpTool(server_label="notes", server_url="https://example.com")) is UNSET


def test_a_missing_extra_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.tools.mcp.client.find_spec", lambda name: None)
    _, message = _expect_error(McpClient(McpSettings(), EgressClient()), server_url="https://example.com")
    assert "pip install 'antiphon[mcp]'" in message
    with pytest.raises(StartupError, match="antiphon"):
        _make_client()


def test_approval_rules_of_a_client_are_used() -> None:
    rules = ApprovalRules(never=ToolNames(tool_names=["echo"]))
    assert _make_client().get_approval(McpTool(server_label="s", require_approval=rules)) is rules


def test_loopback_is_rejected_once_there_are_keys() -> None:
    keyed = False
    mcp = _make_client(at_home=True, keyed=lambda: keyed)
    mcp.check(McpTool(server_label="s", server_url="http://127.0.0.1:1/mcp"), "tools[0]")
    keyed = True
    assert _expect_error(mcp, server_url="http://127.0.0.1:1/mcp")[0] == "tools[3].server_url"
