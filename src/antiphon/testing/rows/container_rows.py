"""Builders of rows of containers."""

from antiphon.ids import Prefix, new_id
from antiphon.stores.base import ContainerFileRow, ContainerRow
from antiphon.testing.rows.response_rows import Clock

SANDBOX = "host:/folder"


def make_container(
    clock: Clock, name: str = "box", minutes: int = 20, sandbox: str = SANDBOX, prefix: Prefix = "cntr"
) -> ContainerRow:
    now = clock()
    return ContainerRow(
        id=new_id(prefix), created=now, name=name, memory="1g", minutes=minutes, last_active=now,
        expires=now + minutes * 60, sandbox=sandbox,
    )  # fmt: skip


def make_container_file(clock: Clock, path: str, size: int = 1, source: str = "user") -> ContainerFileRow:
    return ContainerFileRow(id=new_id("cfile"), created=clock(), size=size, path=path, source=source)
