"""Environments in which code interpreters and shells run commands, and the network access of containers.

Domain secrets are moved out of the encoded fields when a network policy is created, so that no echo, log or store
contains them. Tools read them from the property `secrets`.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class DomainSecret(Struct, kw_only=True):
    domain: str
    name: str
    value: str

    def __repr__(self) -> str:
        return f"DomainSecret(domain={self.domain!r}, name={self.name!r}, value=…)"


class NetworkDisabled(Struct, kw_only=True, tag_field="type", tag="disabled"):
    pass


class NetworkAllowlist(Struct, kw_only=True, tag_field="type", tag="allowlist", dict=True):
    allowed_domains: list[str]
    domain_secrets: list[DomainSecret] | UnsetType = UNSET

    def __post_init__(self) -> None:
        self.__dict__["_secrets"] = [] if self.domain_secrets is UNSET else self.domain_secrets
        self.domain_secrets = UNSET

    @property
    def secrets(self) -> list[DomainSecret]:
        stored: list[DomainSecret] = self.__dict__.get("_secrets", [])
        return stored


NetworkPolicy = NetworkDisabled | NetworkAllowlist
Memory = Literal["1g", "4g", "16g", "64g"]


class AutoContainer(Struct, kw_only=True, tag_field="type", tag="auto"):
    file_ids: list[str] | UnsetType = UNSET
    memory_limit: Memory | UnsetType = UNSET
    network_policy: NetworkPolicy | UnsetType = UNSET


class ShellEnvironment(Struct, kw_only=True, tag_field="type"):
    """The environment in which the commands of a shell tool run."""


class ContainerAuto(ShellEnvironment, tag="container_auto", kw_only=True):
    file_ids: list[str] | UnsetType = UNSET
    memory_limit: Memory | UnsetType = UNSET
    network_policy: NetworkPolicy | UnsetType = UNSET
    skills: list[dict[str, Any]] | UnsetType = UNSET


class LocalEnvironment(ShellEnvironment, tag="local", kw_only=True):
    skills: list[dict[str, Any]] | UnsetType = UNSET


class ContainerReference(ShellEnvironment, tag="container_reference", kw_only=True):
    container_id: str
