"""What a declaration may say; nobody is asked, and nothing is opened."""

from typing import Any

import pytest
from msgspec import UNSET

from antiphon.config.mcp import McpServerSpec
from antiphon.egress import Egress, Policy
from antiphon.errors import BadRequest, StartupError
from antiphon.protocol.types.tools import ApprovalRules, McpTool, ToolNames
from antiphon.tools.mcp.client import Mcp, McpSettings
from antiphon.tools.mcp.servers import server_of

LABELS = {
    "notes": McpServerSpec(label="notes", command="notes-server", require_approval="always"),
    "wiki": McpServerSpec(
        label="wiki", url="http://10.0.0.7/mcp", headers={"X-Team": "blue"}, authorization="wiki-token"
    ),
}
SECRET = "do-not-repeat-me"


def _mcp(**settings: Any) -> Mcp:
    return Mcp(McpSettings(servers=LABELS, **settings), Egress(Policy(["10.9.0.0/16"])))


def _refused(mcp: Mcp | None = None, **declared: Any) -> tuple[str | None, str]:
    with pytest.raises(BadRequest) as raised:
        (mcp or _mcp()).check(McpTool(**{"server_label": "s", **declared}), "tools[3]")
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
def test_a_url_that_is_not_to_be_connected_to_is_refused_by_its_place(url: str) -> None:
    param, _ = _refused(server_url=url)
    assert param == "tools[3].server_url"


@pytest.mark.shows("E.11")
def test_a_private_address_is_refused_with_the_flag_that_opens_it() -> None:
    _, message = _refused(server_url="http://10.0.0.1:9000/mcp")
    assert message.endswith("Its operator can change it with --allow-egress 10.0.0.1:9000.")


@pytest.mark.parametrize("url", ["https://example.com/mcp", "http://example.com:3001/mcp", "http://10.9.1.1/mcp"])
def test_a_public_url_and_what_the_operator_opened_are_fine(url: str) -> None:
    _mcp().check(McpTool(server_label="s", server_url=url), "tools[0]")


@pytest.mark.shows("E.12")
@pytest.mark.parametrize("url", ["http://127.0.0.1:3001/mcp", "http://localhost:3001/mcp", "http://[::1]:3001/"])
def test_loopback_may_be_named_on_ones_own_machine(url: str) -> None:
    _mcp(at_home=True).check(McpTool(server_label="s", server_url=url), "tools[0]")
    assert _refused(_mcp(at_home=True), server_url="http://10.0.0.1/")[0] == "tools[3].server_url"


def test_a_server_has_to_be_named_by_its_url_or_by_a_label_that_is_known() -> None:
    assert _refused() == (
        "tools[3].server_url",
        "There is no server_url, and no MCP server with the label 's' is set up here (notes, wiki).",
    )
    _mcp().check(McpTool(server_label="notes"), "tools[0]")


@pytest.mark.parametrize("field", ["connector_id", "tunnel_id"])
def test_connectors_and_tunnels_are_refused_by_name(field: str) -> None:
    declared: dict[str, Any] = {field: "connector_gmail"}
    assert _refused(**declared)[0] == f"tools[3].{field}"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "a"}, {"content-length": "1"}, {"Transfer-Encoding": "chunked"}, {"Connection": "close"},
        {"Proxy-Authorization": "x"}, {"Upgrade": "h2c"}, {"Mcp-Session-Id": "x"}, {"Accept": "*/*"}, {"Bad Name": "x"},
        {"": "x"}, {"X": f"{SECRET}\r\nY: 1"}, {"X": f"{SECRET}\u00e9"}, {"X": f" {SECRET}"}, {"a": "1", "A": "2"},
        {f"X-{number}": "1" for number in range(65)}, {"X": SECRET * 2000},
    ],
)  # fmt: skip
def test_headers_that_cannot_be_set_are_refused_without_their_values(headers: dict[str, str]) -> None:
    param, message = _refused(server_url="https://example.com", headers=headers)
    assert param == "tools[3].headers"
    assert SECRET not in message


def test_authorization_is_given_once_and_fits_into_a_header() -> None:
    twice = _refused(server_url="https://example.com", authorization=SECRET, headers={"authorization": SECRET})
    assert twice == ("tools[3].headers", "Authorization is given twice: in headers, and by itself.")
    assert _refused(server_url="https://example.com", authorization="a\nb")[0] == "tools[3].authorization"


def test_a_program_takes_no_headers() -> None:
    assert _refused(server_label="notes", authorization=SECRET)[0] == "tools[3].authorization"


def test_a_token_is_sent_as_a_bearer_unless_it_says_otherwise() -> None:
    settings = McpSettings()
    for given, sent in (("abc", "Bearer abc"), ("Basic abc", "Basic abc"), ("bearer abc", "bearer abc")):
        server = server_of(McpTool(server_label="s", server_url="https://a.example", authorization=given), settings)
        assert server.headers == {"authorization": sent}


def test_what_the_operator_says_to_a_server_goes_before_what_a_client_says() -> None:
    declared = McpTool(server_label="wiki", authorization="mine", headers={"x-team": "red", "X-User": "me"})
    server = server_of(declared, McpSettings(servers=LABELS))
    assert server.headers == {"authorization": "Bearer wiki-token", "x-team": "blue", "x-user": "me"}


def test_an_operators_credential_is_not_sent_to_a_clients_url_of_the_same_label() -> None:
    declared = McpTool(server_label="wiki", server_url="https://evil.example/mcp")
    server = server_of(declared, McpSettings(servers=LABELS))
    assert (server.url, server.headers, server.named) == ("https://evil.example/mcp", {}, False)


def test_nothing_shows_a_credential() -> None:
    declared = McpTool(server_label="s", server_url="https://example.com", authorization=SECRET, headers={"X": SECRET})
    server = server_of(declared, McpSettings())
    assert SECRET not in f"{server!r} {declared!r} {LABELS['wiki']!r} {server.key!r}"
    assert server.scrub(f"You sent Bearer {SECRET}.") == "You sent Bearer …."


@pytest.mark.parametrize(
    ("label", "said", "default", "effective"),
    [
        ("s", UNSET, "never", "never"),
        ("s", UNSET, "always", "always"),
        ("s", "never", "always", "never"),
        ("notes", UNSET, "never", "always"),
        ("notes", "never", "never", "always"),
        ("wiki", "never", "always", "never"),
    ],
)
def test_the_operators_always_stands_and_else_the_client_decides(
    label: str, said: Any, default: Any, effective: str
) -> None:
    declared = McpTool(server_label=label, require_approval=said)
    assert _mcp(require_approval=default).approval(declared) == effective


def test_a_server_is_described_by_the_request_or_else_by_the_operator() -> None:
    spec = McpServerSpec(label="notes", command="notes-server", description="What we wrote down.")
    mcp = Mcp(McpSettings(servers={"notes": spec}), Egress())
    assert mcp.description(McpTool(server_label="notes")) == "What we wrote down."
    assert mcp.description(McpTool(server_label="notes", server_description="Mine.")) == "Mine."
    assert mcp.description(McpTool(server_label="notes", server_url="https://example.com")) is UNSET


def test_without_the_extra_a_request_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.tools.mcp.client.installed", lambda: False)
    _, message = _refused(Mcp(McpSettings(), Egress()), server_url="https://example.com")
    assert "pip install 'antiphon[mcp]'" in message
    with pytest.raises(StartupError, match="antiphon"):
        _mcp()


def test_rules_of_a_client_are_kept() -> None:
    rules = ApprovalRules(never=ToolNames(tool_names=["echo"]))
    assert _mcp().approval(McpTool(server_label="s", require_approval=rules)) is rules


def test_at_home_is_nobody_once_there_are_keys() -> None:
    keyed = False
    mcp = _mcp(at_home=True, keyed=lambda: keyed)
    mcp.check(McpTool(server_label="s", server_url="http://127.0.0.1:1/mcp"), "tools[0]")
    keyed = True
    assert _refused(mcp, server_url="http://127.0.0.1:1/mcp")[0] == "tools[3].server_url"
