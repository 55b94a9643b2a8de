"""`antiphon sandbox-packages`: make an environment with the packages that code in containers may import."""

import subprocess
import venv
from importlib.resources import as_file, files
from pathlib import Path

import click

from antiphon.errors import StartupError

SANDBOX_PACKAGES = """Install packages for code in containers. These are numpy, pandas, matplotlib and pillow, about
300 MB.

FOLDER becomes an environment of its own, which --sandbox-python names. The versions are pinned, with their hashes.

\b
  antiphon sandbox-packages /opt/sandbox
  antiphon serve --sandbox-python /opt/sandbox/bin/python
"""
_PIP = ("-I", "-m", "pip", "--disable-pip-version-check", "--no-input", "install")
_HASHED = ("--require-hashes", "--only-binary", ":all:", "-r")


@click.command(help=SANDBOX_PACKAGES)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def sandbox_packages(folder: Path) -> None:
    python = folder.absolute() / "bin" / "python"
    click.echo(f"Making an environment in {folder} …", err=True)
    try:
        venv.create(folder, with_pip=True, symlinks=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise StartupError(f"The environment {folder} cannot be made: {error}.")
    with as_file(files("antiphon.sandbox") / "packages.lock") as lock:
        done = subprocess.run([python, *_PIP, *_HASHED, lock], stdout=2, check=False)
    if done.returncode:
        raise StartupError(f"pip could not install the packages in {folder}: its messages above say why.")
    click.echo(f"antiphon serve --sandbox-python {python}")
