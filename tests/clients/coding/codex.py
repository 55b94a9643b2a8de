"""Configures and runs Codex as its page in docs/clients shows."""

from typing import Any

from tests.clients.coding.client_runner import Client, CommandResult
from tests.clients.coding.recording_proxy import RecordingProxy
from tests.clients.sdk_pages.client_pages import extract_block

PAGE = "codex.md"
# without the sandbox, which not every machine supports
EXEC = "codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox"
SUM = "The sum is 42."
WEBSOCKET_SETTINGS = extract_block(PAGE, "toml", "supports_websockets")


def configure(client: Client, port: int, *, before: str = "", after: str = "") -> None:
    table = extract_block(PAGE, "toml", "[model_providers.antiphon]", port=port)
    client.write_file(".codex/config.toml", f"{before}{table}{after}")


def run_page_command(client: Client, **environment: str) -> CommandResult:
    """Run the command of the page."""
    command = extract_block(PAGE, "sh").replace("codex exec --skip-git-repo-check", EXEC)
    return client.run(command, environment)


def get_item_types(items: list[Any]) -> list[str]:
    return [item["type"] for item in items]


def get_requests(proxy: RecordingProxy, transport: str) -> list[Any]:
    """Return the requests sent over the expected transport, without warm-ups, which generate nothing."""
    posted, upgrades = proxy.get_bodies(), proxy.get_upgrades()
    assert (bool(posted), bool(upgrades)) == (not transport, bool(transport))
    messages = [message for upgrade in upgrades for message in upgrade.messages]
    return [each for each in posted or messages if each.get("generate", True)]
