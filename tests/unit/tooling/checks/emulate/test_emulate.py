"""The patch of the emulated machine, the search for its sources, and the script that runs in its guest."""

import subprocess
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tooling.checks.emulate import bochs, guest, patch
from tooling.checks.emulate.patch import Change


def sources() -> dict[str, str]:
    """Files that have the places of every change, and nothing else."""
    found: dict[str, str] = {}
    for change in patch.CHANGES:
        text = found.get(change.file, "")
        found[change.file] = text + f"{change.start}\n{change.anchor}\n"
    return found


def test_every_change_is_applied_where_it_belongs(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = (
        Change("a", "one", "1", "before"),
        Change("a", "one", "2"),
        Change("a", "one", "3", "instead", start="late"),
    )
    monkeypatch.setattr(patch, "CHANGES", changes)
    assert patch.patched({"a": "one late one", "b": "one"}) == {"a": "1one2 late 3"}


def test_the_changes_fit_together() -> None:
    assert set(patch.patched(sources())) == {change.file for change in patch.CHANGES}


@pytest.mark.parametrize("number", range(len(patch.CHANGES)))
def test_a_missing_place_is_one_line(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    change = patch.CHANGES[number]
    monkeypatch.setattr(patch, "CHANGES", (change,))
    with pytest.raises(UsageError, match=f"^bochs/{change.file} has no [^\n]*: check out a commit of 2026-08"):
        patch.patched({change.file: "int main;"})


def test_without_a_checkout_the_error_says_where_to_get_one(tmp_path: Path) -> None:
    for folder, found in ((None, "--bochs is missing"), (str(tmp_path), "found no git checkout of Bochs")):
        with pytest.raises(UsageError, match=f"{found}.*: get it with git clone https://[^\n]*$"):
            bochs.checkout(folder)


def test_a_checkout_and_a_repository_without_files_are_found(tmp_path: Path) -> None:
    source = tmp_path / "checkout"
    (source / "bochs/cpu/avx").mkdir(parents=True)
    (source / "bochs/cpu/avx/amx.cc").write_text("")
    git = ("git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "a")):
        subprocess.run([*git, *arguments], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(source), str(tmp_path / "bare")], check=True)
    assert bochs.checkout(str(source)) == source
    assert bochs.checkout(str(tmp_path / "bare")) == tmp_path / "bare"


def test_a_command_runs_as_in_a_container() -> None:
    configuration = {
        "Env": ["PATH=/bin", "A=b c"],
        "Entrypoint": ["entrypoint"],
        "User": "1000:1001",
        "WorkingDir": "/work space",
    }
    assert guest.script(configuration, ("run", "a b")) == (
        "cd '/work space'\n"
        "exec setpriv --reuid=1000 --regid=1001 --clear-groups env -i PATH=/bin 'A=b c' HOSTNAME=guest "
        "entrypoint run 'a b'\n"
    )


def test_a_command_of_an_image_without_settings_runs_as_root() -> None:
    (line, command) = guest.script({"Env": None, "Entrypoint": None, "User": ""}, ("true",)).splitlines()
    assert line == "cd /"
    assert command == "exec setpriv --reuid=0 --regid=0 --clear-groups env -i HOSTNAME=guest true"
