"""Codex, set up and asked as its page shows it."""

from typing import Any

from tests.clients.coding.client_runner import Client, Ran
from tests.clients.coding.recording_proxy import Tap
from tests.clients.sdk_pages.client_pages import shown

PAGE = "codex.md"
EXEC = "codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox"  # not every machine can confine
SUM = "The sum is 42."
SOCKETS = shown(PAGE, "toml", "supports_websockets")


def configure(client: Client, port: int, *, before: str = "", after: str = "") -> None:
    table = shown(PAGE, "toml", "[model_providers.antiphon]", port=port)
    client.write(".codex/config.toml", f"{before}{table}{after}")


def asked(client: Client, **environment: str) -> Ran:
    """The page's own command."""
    command = shown(PAGE, "sh").replace("codex exec --skip-git-repo-check", EXEC)
    return client.run(command, environment)


def kinds(items: list[Any]) -> list[str]:
    return [item["type"] for item in items]


def requests(tap: Tap, transport: str) -> list[Any]:
    """All that came, by the transport that was meant; a warm-up asks for nothing."""
    posted, upgrades = tap.bodies(), tap.upgrades()
    assert (bool(posted), bool(upgrades)) == (not transport, bool(transport))
    messages = [message for upgrade in upgrades for message in upgrade.messages]
    return [each for each in posted or messages if each.get("generate", True)]
