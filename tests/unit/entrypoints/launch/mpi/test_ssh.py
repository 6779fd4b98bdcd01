"""Both ends of ssh: their keys, their configuration, and the error for a missing key."""

from __future__ import annotations

import re
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.launch.mpi import ssh


def keys(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(f"content of {name}\n")
    return folder


def server_config(folder: Path, port: int) -> str:
    return ssh.server_config(folder, port, "me")


def test_only_the_user_can_read_the_copies_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "PRIVATE", tmp_path)
    source = keys(tmp_path / "mounted", "id_ed25519", "known_hosts")
    (source / "id_ed25519").chmod(0o644)
    (source / "..data").mkdir()  # as in a Kubernetes secret
    copy = ssh.copy_keys(source)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    assert {path.name for path in copy.iterdir()} == {"id_ed25519", "known_hosts"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in copy.iterdir()} == {0o600}
    assert (copy / "id_ed25519").read_text() == "content of id_ed25519\n"


def test_copies_of_keys_are_in_the_first_writable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with --read-only, where /dev/shm alone may be writable. Root may write to all of them."""
    run, home, temporary = (tmp_path / name for name in ("run", "home", "temporary"))
    monkeypatch.setattr(ssh, "PRIVATE", run)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    source = keys(tmp_path / "mounted", "id_ed25519")
    with pytest.raises(UsageError, match=f"cannot write to {run}, {home} or .*: mount a tmpfs at {run}$"):
        ssh.copy_keys(source)
    for folder in (temporary, home, run):
        folder.mkdir()
        assert ssh.copy_keys(source).parent == folder


def test_a_missing_folder_of_keys_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder, expected one with keys"):
        ssh.copy_keys(tmp_path / "none")


def test_a_server_admits_one_user_with_a_key_for_commands_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = keys(tmp_path / "keys", "authorized_keys", "ssh_host_ed25519_key", "ssh_host_ed25519_key.pub")
    monkeypatch.setattr(ssh, "only_ours", lambda _folder: True)
    config = dict(line.split(" ", 1) for line in server_config(folder, 2222).splitlines())
    assert config["HostKey"] == str(folder / "ssh_host_ed25519_key")
    assert config["AllowUsers"] == "me"
    expected = {
        "Port": "2222",
        "AuthenticationMethods": "publickey",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "no",
        "UsePAM": "no",
        "StrictModes": "yes",
        "DisableForwarding": "yes",
        "PermitTTY": "no",
        "PermitUserEnvironment": "no",
    }
    assert {name: config[name] for name in expected} == expected


def test_strict_modes_are_off_on_a_volume_that_every_user_may_write_to(tmp_path: Path) -> None:
    assert ssh.only_ours(Path("/usr/bin"))
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume").chmod(0o777)
    folder = keys(tmp_path / "volume" / "keys", "authorized_keys", "id_rsa")
    assert not ssh.only_ours(folder)
    assert "StrictModes no\n" in server_config(folder, 2222)


def test_without_a_host_key_both_ends_use_the_users_key(tmp_path: Path) -> None:
    folder = keys(tmp_path / "keys", "authorized_keys", "id_rsa", "id_rsa.pub")
    assert f"HostKey {folder / 'id_rsa'}\n" in server_config(folder, 2222)
    assert f"UserKnownHostsFile {folder / 'known_hosts'}\n" in ssh.client_config(folder, 2222)
    assert (folder / "known_hosts").read_text() == "* content of id_rsa.pub\n"


def test_a_client_verifies_hosts_and_never_prompts(tmp_path: Path) -> None:
    folder = keys(tmp_path / "keys", "id_ed25519", "known_hosts")
    config = ssh.client_config(folder, 2022)
    for line in ("Port 2022", "StrictHostKeyChecking yes", "BatchMode yes", "IdentitiesOnly yes"):
        assert f"{line}\n" in config
    assert re.search(r"ServerAliveInterval \d+\nServerAliveCountMax \d+\n", config)
    assert (folder / "known_hosts").read_text() == "content of known_hosts\n"


@pytest.mark.parametrize(
    ("names", "end", "message"),
    [
        (["id_ed25519"], server_config, "no authorized_keys"),
        (["authorized_keys"], server_config, r"no id_\*"),
        (["id_ed25519.pub", "known_hosts"], ssh.client_config, r"no id_\*"),
        (["id_ed25519"], ssh.client_config, "neither known_hosts nor id_ed25519.pub"),
    ],
    ids=["nobody may log in", "no host key", "no key", "no known hosts"],
)
def test_a_missing_key_is_named(
    tmp_path: Path, names: list[str], end: Callable[[Path, int], str], message: str
) -> None:
    folder = keys(tmp_path / "keys", *names)
    with pytest.raises(UsageError, match=message):
        end(folder, 2222)
