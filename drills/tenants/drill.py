"""Isolation of two tenants from each other, and rejection of clients without a valid key."""

from drills.harness.findings import Findings
from drills.harness.storage_locations import StorageKind, open_storage
from drills.tenants.auth import check_authentication
from drills.tenants.fixtures import open_fixture
from drills.tenants.isolation import check_isolation


async def tenants(kind: StorageKind, step: int, findings: Findings) -> None:
    """Run the drill with every `step`-th combination of ids and every `step`-th variation of invalid headers."""
    with open_storage(kind) as storage:
        async with open_fixture(storage) as fixture:
            await check_isolation(fixture, step, findings)
            await check_authentication(fixture, step, findings)
        if "Traceback" in fixture.output:
            findings.add_violation(f"the server wrote a traceback: {fixture.output[-2000:]}")
        stored = b"".join(path.read_bytes() for path in storage.folder.iterdir() if path.is_file())
        for key in (
            fixture.keys.alpha,
            fixture.keys.beta,
            fixture.keys.admin,
            fixture.keys.revoked,
            fixture.keys.expired,
        ):
            findings.add_trials()
            secret = key.rpartition("_")[2]
            if secret in fixture.output or secret.encode() in stored:
                findings.add_violation("a key was found in the log or in the store")
