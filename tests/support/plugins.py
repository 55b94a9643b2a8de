"""Packages of others with plug-ins, as pip would install them, in a folder that Python imports from."""

from pathlib import Path

import pytest


def install_plugin(
    monkeypatch: pytest.MonkeyPatch, folder: Path, package: str, entries: dict[str, dict[str, str]], source: str
) -> None:
    """Install a package of one module with this source. `entries`: references by name, by group of entry points."""
    module, info = package.replace("-", "_"), folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
    sections = [
        f"[antiphon.{group}]\n" + "".join(f"{name} = {target}\n" for name, target in names.items())
        for group, names in entries.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(sections), "utf-8")
    (folder / f"{module}.py").write_text(source, "utf-8")
    monkeypatch.syspath_prepend(folder)
