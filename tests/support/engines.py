"""The configured engine without the pool that servers put around it."""

from antiphon.config import Config
from antiphon.engines.base import Engine, ProgressCallback
from antiphon.engines.factory import build_member_specs, build_pool


def build_engine(config: Config, progress: ProgressCallback | None = None) -> Engine:
    """Build the configured engine; several engines become a pool."""
    specs = build_member_specs(config, progress)
    return specs[0].build() if len(specs) == 1 else build_pool(config, progress)
