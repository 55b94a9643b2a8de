"""Selects the sandbox by the settings: the process of this host, or workers on others."""

from urllib.parse import urlsplit

from antiphon.config import Config
from antiphon.config.key_settings import load_sandbox_keys
from antiphon.errors import StartupError
from antiphon.sandbox.local import LocalSandbox, make_sandbox_settings
from antiphon.sandbox.remote import find_port
from antiphon.sandbox.worker_pool import WorkerPool


def make_sandbox(config: Config) -> LocalSandbox | WorkerPool:
    """Raises StartupError if there is no key for workers, or one has an invalid port."""
    tools = config.tools
    if not tools.sandbox_url or tools.sandbox == "none":
        return LocalSandbox(make_sandbox_settings(config))
    urls = [*map(urlsplit, tools.sandbox_url)]
    try:
        _ = [find_port(url) for url in urls]
    except ValueError as error:
        raise StartupError(f"--sandbox-url is invalid: {error}.")
    return WorkerPool(urls, load_sandbox_keys(config)[0], tools.sandbox)
