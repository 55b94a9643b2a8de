"""Plants a fault in this process: the source of one module of the server is changed when it is imported.

The server itself has no hooks for this, and no file is written.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from drills.planted.faults import FAULTS, PlantedFault

VARIABLE = "DRILL_FAULT"  # name of the fault


def plant_from_environment() -> None:
    """Plant the fault that the environment names, if any."""
    if name := os.environ.get(VARIABLE):
        sys.meta_path.insert(0, FaultFinder(FAULTS[name]))


class FaultFinder(MetaPathFinder):
    """Finds the module of the fault only."""

    def __init__(self, fault: PlantedFault) -> None:
        self._fault = fault

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == self._fault.module else None
        if spec is None or spec.origin is None:
            return None
        spec.loader = FaultLoader(fullname, spec.origin, self._fault)
        return spec


class FaultLoader(SourceFileLoader):
    """Compiles the changed source, whether or not the module has been compiled before."""

    def __init__(self, fullname: str, path: str, fault: PlantedFault) -> None:
        super().__init__(fullname, path)
        self._fault = fault

    def get_code(self, fullname: str) -> CodeType:
        source = self._fault.apply(self.get_data(self.path).decode())
        return compile(source, self.path, "exec", dont_inherit=True)
