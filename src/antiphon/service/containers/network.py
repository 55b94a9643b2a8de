"""The network of containers: which domains a policy may name, and the proxy through which code reaches them."""

from antiphon.egress import EgressClient
from antiphon.egress.domains import ALL, DomainList, parse_domain
from antiphon.egress.proxy import ForwardProxy
from antiphon.errors import InvalidValue, StartupError, UnsupportedParameter
from antiphon.protocol.types.tools import NetworkAllowlist, NetworkDisabled, NetworkPolicy

LEVEL = "namespaces"  # of the sandbox: at the others, containers have no network of their own
_SEPARATOR = " "


class ContainerNetwork:
    def __init__(self, egress: EgressClient, allowed_domains: tuple[str, ...]) -> None:
        """`allowed_domains` are the operator's. Raises StartupError if one is invalid."""
        self._egress = egress
        try:
            entries = [entry if entry == ALL else parse_domain(entry) for entry in allowed_domains]
        except ValueError as error:
            raise StartupError(f"--container-allowed-domains: {error}, nor *.") from None
        self._allowed = DomainList(entries)

    def read_domains(self, policy: NetworkPolicy | None, prefix: str) -> str:
        """Return the domains of a policy as they are stored; none if there is no network. Raises BadRequest."""
        if not isinstance(policy, NetworkAllowlist):
            return ""
        param = f"{prefix}network_policy"
        if policy.secrets:
            message = "'domain_secrets' are not supported: code in a container has to know the secrets that it uses."
            raise UnsupportedParameter(message, param=f"{param}.domain_secrets")
        if not self._allowed.entries:
            message = (
                "Containers have no network on this server; its operator allows it by --container-allowed-domains."
            )
            raise UnsupportedParameter(message, param=param)
        if not policy.allowed_domains:
            message = "An allow-list has at least one domain; the policy without network is 'disabled'."
            raise InvalidValue(message, param=f"{param}.allowed_domains")
        domains = [
            self._check_domain(domain, f"{param}.allowed_domains[{number}]")
            for number, domain in enumerate(policy.allowed_domains)
        ]
        return _SEPARATOR.join(sorted(set(domains)))

    def _check_domain(self, text: str, param: str) -> str:
        try:
            domain = parse_domain(text)
        except ValueError as error:
            raise InvalidValue(f"{error}.", param=param) from None
        if not self._allowed.covers(domain):
            message = f"Containers may not reach {domain} on this server (--container-allowed-domains)."
            raise InvalidValue(message, param=param)
        return domain

    def make_proxy(self, domains: str) -> ForwardProxy | None:
        """Return the proxy of a call, for what the operator still allows; None if the container has no network."""
        if not domains:
            return None
        allowed = [domain for domain in domains.split(_SEPARATOR) if self._allowed.covers(domain)]
        return ForwardProxy(self._egress, DomainList(allowed))


def to_policy(domains: str) -> NetworkPolicy:
    return NetworkAllowlist(allowed_domains=domains.split(_SEPARATOR)) if domains else NetworkDisabled()
