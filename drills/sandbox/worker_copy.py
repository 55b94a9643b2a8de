"""A copy of the program of the sandbox process, in a folder that every user can read, whole or with a fault."""

import shutil
import tempfile
from pathlib import Path

import antiphon.sandbox


def copy_worker(folder: Path) -> Path:
    """Return the path of boot.py in the copy."""
    source = Path(antiphon.sandbox.__file__).parent
    target = folder / "antiphon" / "sandbox"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target / "worker" / "boot.py"


def copy_without_seccomp() -> Path:
    """Return boot.py of a copy that does not filter system calls: the planted fault of this drill."""
    boot = copy_worker(Path(tempfile.mkdtemp(prefix="sandbox-fault-")))
    path = boot.with_name("confinement.py")
    text = path.read_text()
    passage = "    seccomp.install(seccomp.assemble(spec.namespaces, scoped, shared_user=spec.uid is None))\n"
    if text.count(passage) != 1:
        raise ValueError("the fault does not apply to confinement.py")
    path.write_text(text.replace(passage, ""))
    return boot
