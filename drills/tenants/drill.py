"""The wall between tenants, and the edge that tells them apart: two of them, and everybody who has no key."""

from drills.harness.findings import Findings
from drills.harness.storage_locations import Kind, place
from drills.tenants.auth import edge
from drills.tenants.fixtures import world
from drills.tenants.isolation import wall


async def tenants(kind: Kind, step: int, findings: Findings) -> None:
    """`step`: of the many ways to fill in ids and to knock, each so many-th."""
    with place(kind) as where:
        async with world(where) as found:
            await wall(found, step, findings)
            await edge(found, step, findings)
        if "Traceback" in found.output:
            findings.violated(f"the server wrote of a defect: {found.output[-2000:]}")
        kept = b"".join(path.read_bytes() for path in where.folder.iterdir() if path.is_file())
        for key in (found.keys.alpha, found.keys.beta, found.keys.admin, found.keys.revoked, found.keys.expired):
            findings.tried()
            secret = key.rpartition("_")[2]
            if secret in found.output or secret.encode() in kept:
                findings.violated("a key stands in the log or in the store")
