"""`antiphon keys` and the servers that use its keys: creating, listing and revoking, which applies within seconds on
every server.
"""

import contextlib
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from antiphon.cli.commands import cli
from antiphon.errors import StartupError
from tests.cli.process import TIMEOUT_SECONDS, run_antiphon
from tests.support.server_process import ServerProcess, run_server
from tests.support.services import Postgres

KEY = re.compile(r"ak_[0-9a-f]{32}_[0-9a-f]{48}")
FAKE = ("--engine", "fake")


def run_keys(*arguments: str) -> Result:
    """Run the command in this process: it prints nothing that needs a process of its own."""
    return CliRunner().invoke(cli, ["keys", *arguments], prog_name="antiphon")


def create_key(store: str, *arguments: str) -> tuple[str, str]:
    """Create a key; return its id and the key."""
    made = run_keys("create", "--store", store, *arguments)
    assert made.exit_code == 0, made.stderr
    key = made.stdout.splitlines()[-1]
    assert made.stdout == f"{key}\n"
    assert KEY.fullmatch(key)
    assert key not in made.stderr
    return made.stderr.split()[0], key


def get_status(server: ServerProcess, key: str | None, path: str = "/v1/models") -> int:
    return server.send("GET", path, headers=None if key is None else {"Authorization": f"Bearer {key}"})[0]


def wait_for_status(server: ServerProcess, key: str, status: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while get_status(server, key) != status:
        assert time.monotonic() < deadline, server.read_new_output()
        time.sleep(0.05)


def test_a_key_is_created_listed_and_revoked(tmp_path: Path) -> None:
    store = str(tmp_path / "my.db")
    assert run_keys("list", "--store", store).stderr == "There are no keys.\n"
    name, key = create_key(store, "--tenant", "acme", "--name", "lap top", "--expires", "90")
    other, _ = create_key(store, "--tenant", "ops", "--scope", "admin", "--scope", "inference")
    dated, _ = create_key(store, "--tenant", "ops", "--expires", "2999-12-31")
    listed = run_keys("list", "--store", store).stdout
    assert key not in listed
    assert key.rpartition("_")[2] not in listed
    heads, *lines = [line.split() for line in sorted(listed.splitlines(), reverse=True)]
    assert {line[0] for line in lines} | {heads[0]} == {name, other, dated, "id"}
    assert [column for line in listed.splitlines() if name in line for column in line.split()[1:3]] == [
        "acme",
        "inference",
    ]
    assert "admin,inference" in listed
    assert "2999-12-31" in listed
    filtered = run_keys("list", "--store", store, "--tenant", "acme").stdout
    assert len(filtered.splitlines()) == 2
    for _ in range(2):
        revoked = run_keys("revoke", name, "--store", store)
        assert (revoked.exit_code, revoked.stdout) == (0, f"{name} of acme is revoked.\n")
    assert "revoked" in run_keys("list", "--store", store, "--tenant", "acme").stdout


def test_configured_keys_are_listed_by_their_log_names(tmp_path: Path) -> None:
    store, file, log = str(tmp_path / "my.db"), tmp_path / "keys", tmp_path / "access.log"
    file.write_text("first-of-all\nacme key-of-acme\n")
    flags = ("--store", store, "--api-key-file", str(file))
    listed = run_keys("list", *flags).stdout.splitlines()
    assert [line.split()[1:3] for line in listed[1:]] == [["default", "admin,inference"], ["acme", "inference"]]
    name = listed[2].split()[0]
    file.write_text("another\nfirst-of-all\nacme key-of-acme\n")
    assert run_keys("list", *flags, "--tenant", "acme").stdout.splitlines()[1].split()[0] == name
    with run_server(*FAKE, *flags, "--access-log", str(log)) as server:
        assert get_status(server, "key-of-acme") == 200
    assert f'"key":"{name}"' in log.read_text()
    assert "key-of-acme" not in log.read_text() + "".join(listed)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("create", "--tenant", "Acme"), "is not a valid tenant name"),
        (("create", "--tenant", ""), "is not a valid tenant name"),
        (("create",), "--tenant"),
        (("create", "--tenant", "a", "--scope", "root"), "Unknown scope 'root'"),
        (("create", "--tenant", "a", "--expires", "soon"), "--expires takes"),
        (("create", "--tenant", "a", "--expires", "0"), "must be in the future"),
        (("create", "--tenant", "a", "--expires", "1e400"), "--expires takes"),
        (("create", "--tenant", "a", "--expires", "1999-01-01"), "must be in the future"),
        (("create", "--tenant", "a", "--store", "memory"), "--api-key"),
        (("revoke", "key_1"), "no key with this id"),
        (("revoke", f"key_{'0' * 32}"), "no key with this id"),
        (("list", "--store", "postgresql://me:hush@127.0.0.1:1/x"), "127.0.0.1"),
    ],
)
def test_invalid_arguments_print_one_message(tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    store_flags = () if "--store" in arguments else ("--store", str(tmp_path / "my.db"))
    ran = run_keys(*arguments, *store_flags)
    output = str(ran.exception) if isinstance(ran.exception, StartupError) else ran.stderr
    # `main` turns a StartupError into exit code 2
    assert ran.exit_code == (1 if isinstance(ran.exception, StartupError) else 2)
    assert ran.stdout == ""
    assert expected in output
    assert "hush" not in output


def test_a_running_server_applies_created_and_revoked_keys(tmp_path: Path) -> None:
    store = str(tmp_path / "my.db")
    with run_server(*FAKE, "--store", store) as server:
        assert get_status(server, None) == 200
        name, key = create_key(store, "--tenant", "acme")
        assert get_status(server, key) == 200
        assert get_status(server, None) == 401
        seconds = [measure_revocation(server, store, name, key)]
        while min(seconds) > 6 and len(seconds) < 3:  # a busy machine may take longer
            seconds.append(measure_revocation(server, store, *create_key(store, "--tenant", "acme")))
        assert min(seconds) < 6
        assert key.rpartition("_")[2] not in server.read_output().decode()


def measure_revocation(server: ServerProcess, store: str, name: str, key: str) -> float:
    """Revoke a valid key; return the seconds until the server rejects it."""
    wait_for_status(server, key, 200)
    run_keys("revoke", name, "--store", store)
    began = time.monotonic()
    wait_for_status(server, key, 401)
    return time.monotonic() - began


@pytest.mark.shows("H.12")
def test_a_stored_key_is_enough_to_listen_beyond_loopback(tmp_path: Path) -> None:
    store = str(tmp_path / "my.db")
    refused = run_antiphon(tmp_path, "serve", *FAKE, "--host", "0.0.0.0", "--port", "0", "--store", store)
    assert refused.returncode == 2
    assert "antiphon keys create" in refused.stderr
    _, key = create_key(store, "--tenant", "acme")
    with run_public_server(store) as server:
        assert get_status(server, key) == 200
        assert get_status(server, None) == 401


@contextlib.contextmanager
def run_public_server(store: str) -> Iterator[ServerProcess]:
    """Run a server on all interfaces; its banner still names the loopback address."""
    with run_server(*FAKE, "--host", "0.0.0.0", "--store", store) as server:
        yield server


def test_sighup_reloads_the_key_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("old-key\nacme key-of-acme\n")
    with run_server(*FAKE, "--api-key-file", str(file)) as server:
        assert [get_status(server, key) for key in ("old-key", "key-of-acme", "new-key", None)] == [200, 200, 401, 401]
        assert [get_status(server, key, "/metrics") for key in ("old-key", "key-of-acme")] == [200, 403]
        file.write_text("not a line\n")
        server.process.send_signal(signal.SIGHUP)
        wait_for_log(server, "is invalid at line 1")
        assert get_status(server, "old-key") == 200
        file.write_text("new-key\n")
        server.process.send_signal(signal.SIGHUP)
        wait_for_status(server, "new-key", 200)
        assert [get_status(server, key) for key in ("old-key", "key-of-acme")] == [401, 401]
        assert "new-key" not in server.read_output().decode()


def wait_for_log(server: ServerProcess, text: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while text.encode() not in server.read_output():
        assert time.monotonic() < deadline, server.read_new_output()
        time.sleep(0.02)


@pytest.mark.needs("postgresql")
def test_two_servers_on_one_database_apply_the_same_keys(postgres: Postgres) -> None:
    with postgres.temporary_database() as store, contextlib.ExitStack() as opened:
        name, key = create_key(store, "--tenant", "acme")
        one, other = [opened.enter_context(run_server(*FAKE, "--store", store)) for _ in range(2)]
        assert [get_status(server, key) for server in (one, other)] == [200, 200]
        _, later = create_key(store, "--tenant", "acme")
        assert [get_status(server, later) for server in (one, other)] == [200, 200]
        assert run_keys("revoke", name, "--store", store).exit_code == 0
        for server in (one, other):
            wait_for_status(server, key, 401)
            assert get_status(server, later) == 200
