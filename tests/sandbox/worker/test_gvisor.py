"""The bundle of a container in gVisor. What runs in it is tested by `tests/sandbox/test_contract.py`."""

import json
import os
from pathlib import Path

from antiphon.sandbox.worker.confinement import Confinement
from antiphon.sandbox.worker.gvisor import write_bundle


def make_spec(folder: Path) -> Confinement:
    for name in ("root", "data", "tmp", "skills"):
        (folder / name).mkdir()
    return Confinement(
        namespaces=True, runsc="/usr/bin/runsc", root=f"{folder}/root", data=f"{folder}/data",
        temporary=f"{folder}/tmp", skills=f"{folder}/skills", uid=1234, memory=1 << 30, disk=1 << 30, processes=64,
    )  # fmt: skip


def test_the_bundle_shows_the_folders_read_only_and_gives_no_right(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    link = tmp_path / "link"
    link.symlink_to("usr/link")
    for _ in range(2):  # a kernel that was killed is started again
        write_bundle(spec, ["/usr", "/tmp/venv", str(link)], f"{tmp_path}/bundle")
    found = json.loads((tmp_path / "bundle/config.json").read_text())
    mounts = {mount["destination"]: mount for mount in found["mounts"]}
    writable = {name for name, mount in mounts.items() if "rw" in mount.get("options", ())}
    assert writable == {"/mnt/data", "/tmp"}
    assert (mounts["/mnt/data"]["source"], mounts["/tmp"]["source"]) == (spec.data, spec.temporary)
    shown = mounts.keys() - writable - {"/proc"}
    assert shown == {"/usr", "/tmp/venv", "/opt/antiphon/sandbox/worker", "/home/oai/skills"}
    assert all({"ro", "nosuid", "nodev"} <= {*mounts[name]["options"]} for name in shown)
    assert found["root"] == {"path": spec.root, "readonly": True}
    process = found["process"]
    assert (process["capabilities"], process["noNewPrivileges"], process["env"]) == ({}, True, [])
    assert {one["type"] for one in found["linux"]["namespaces"]} >= {"pid", "network", "ipc", "mount"}
    guest = json.loads(process["args"][-1])
    assert (guest["data"], guest["temporary"], guest["uid"]) == ("/mnt/data", "/tmp", None)
    assert os.readlink(f"{spec.root}{link}") == "usr/link"
    assert (tmp_path / "tmp/venv").is_dir()
    assert "sandbox:x:0:0" in Path(spec.root, "etc/passwd").read_text()
