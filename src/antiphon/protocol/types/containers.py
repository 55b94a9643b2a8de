"""Containers in which code runs, and their files."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.protocol.types.lists import ListPage, ListQuery
from antiphon.protocol.types.tools import ContainerSkills, Memory, NetworkPolicy


class ContainerExpiry(Struct, frozen=True, kw_only=True):
    anchor: Literal["last_active_at"]
    minutes: Annotated[int, Meta(ge=1, le=20)]


class CreateContainer(Struct, frozen=True, kw_only=True):
    name: str
    expires_after: ContainerExpiry = ContainerExpiry(anchor="last_active_at", minutes=20)
    file_ids: Annotated[list[str], Meta(max_length=100)] = []
    memory_limit: Memory = "1g"
    network_policy: NetworkPolicy | None = None
    skills: ContainerSkills = []


class ContainerObject(Struct, kw_only=True):
    id: str
    object: Literal["container"] = "container"
    created_at: int
    status: Literal["running", "expired"]
    expires_after: ContainerExpiry
    last_active_at: int
    memory_limit: Memory
    name: str
    network_policy: NetworkPolicy


class ContainerDeleted(Struct, kw_only=True):
    id: str
    object: Literal["container.deleted"] = "container.deleted"
    deleted: bool = True


class ContainerList(ListPage, kw_only=True):
    data: list[ContainerObject]


class ContainersQuery(ListQuery, frozen=True, kw_only=True):
    name: str | None = None


class AddContainerFile(Struct, frozen=True, kw_only=True):
    """The JSON body. A file that is not stored yet is sent as a form instead."""

    file_id: str


class ContainerFileObject(Struct, kw_only=True):
    id: str
    object: Literal["container.file"] = "container.file"
    bytes: int
    container_id: str
    created_at: int
    path: str
    source: str


class ContainerFileDeleted(Struct, kw_only=True):
    id: str
    object: Literal["container.file.deleted"] = "container.file.deleted"
    deleted: bool = True


class ContainerFileList(ListPage, kw_only=True):
    data: list[ContainerFileObject]
