"""The program of the sandbox process, of its zygote, and in gVisor, for any interpreter: `python -I boot.py ROLE …`.

Antiphon need not be installed for that interpreter, and its other modules cannot be imported: their package is replaced
by an empty one, in the same folder.
"""

import sys
from pathlib import Path
from types import ModuleType

if __name__ == "__main__":
    package = ModuleType("antiphon")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["antiphon"] = package

    if sys.argv[1] == "guest":  # without the modules of the sandbox process, which take long to import there
        from antiphon.sandbox.worker.zygote import run_guest

        sys.exit(run_guest(sys.argv[2]))

    from antiphon.sandbox.worker.main import main

    sys.exit(main(*sys.argv[1:]))
