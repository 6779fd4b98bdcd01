"""The wheel folder: exactly the wheels of the lock, or one line with the cause and no partial file."""

import functools
import http.server
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from tests.answers import served
from tests.unit.tooling.tiny import make_pin, make_simple_index, make_wheel, write_lock
from tooling.basis.paths import ROOT
from tooling.pins.pin import Pin
from tooling.wheels import fetch, locks, pip


@dataclass(frozen=True)
class Place:
    """A pin with a lock of two wheels, the folder that serves them and the folder that they are fetched into."""

    pin: Pin
    served: Path
    fetched: Path

    def complete(self) -> None:
        """Put the wheels in place, as a fetch does."""
        shutil.copytree(self.served, self.fetched)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.fetched.iterdir())


WHEELS = ["tiny_a-1.0-py3-none-any.whl", "tiny_b-2.0-py3-none-any.whl"]


@pytest.fixture(autouse=True)
def no_pip_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the settings of a test: no index, no configuration and no proxy of this machine."""
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    served = tmp_path / "served"
    made = [make_wheel(served, "tiny_a", "1.0"), make_wheel(served, "tiny_b", "2.0")]
    write_lock(tmp_path / "locks", made)
    monkeypatch.setattr(locks, "LOCKS", tmp_path / "locks")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(served))
    return Place(make_pin({"tiny-a": "1.0", "tiny-b": "2.0"}), served, tmp_path / "wheels" / "tiny")


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def fails(place: Place) -> str:
    """The message of a fetch that fails. Asserts that no partial file is left."""
    with pytest.raises(UsageError) as caught:
        fetch.fetch(place.pin, place.fetched)
    assert caught.value.exit_code == contract.USAGE_EXIT_CODE
    assert "\n" not in str(caught.value)
    left = {path.name for path in place.fetched.parent.iterdir()} - {".tiny.lock"}
    assert left == {"tiny"}, "scratch was left behind"
    return str(caught.value)


def test_a_fetch_downloads_exactly_the_locks_wheels_and_a_second_fetch_does_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch.fetch(place.pin, place.fetched) == place.fetched
    assert place.names() == WHEELS
    before = [path.stat() for path in sorted(place.fetched.iterdir())]
    monkeypatch.setenv("PIP_FIND_LINKS", str(place.served / "missing"))
    capsys.readouterr()
    fetch.fetch(place.pin, place.fetched)
    assert capsys.readouterr().err == ""
    after = [path.stat() for path in sorted(place.fetched.iterdir())]
    assert [(stat.st_ino, stat.st_mtime_ns) for stat in after] == [(s.st_ino, s.st_mtime_ns) for s in before]


def test_wheels_of_another_pin_are_copied_where_the_file_system_has_no_hard_links(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    fetch.fetch(place.pin, place.fetched)
    monkeypatch.setattr("os.link", refuse)
    monkeypatch.setenv("PIP_FIND_LINKS", str(place.served / "missing"))
    other = fetch.fetch(place.pin, place.fetched.with_name("other"))
    assert {path.name for path in other.iterdir()} == {path.name for path in place.fetched.iterdir()}


def test_removed_wheels_are_fetched_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "WHEELS", place.fetched.parent)
    place.complete()
    other = place.fetched.with_name("other")
    other.mkdir()
    fetch.remove(place.pin)
    assert (place.fetched.exists(), other.exists()) == (False, True)
    fetch.remove(place.pin)
    fetch.fetch(place.pin)
    assert place.names() == WHEELS


def test_a_file_with_a_wrong_hash_is_deleted_and_fetched_again(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.complete()
    broken = place.fetched / WHEELS[0]
    broken.write_bytes(broken.read_bytes()[:-1])
    fetch.fetch(place.pin, place.fetched)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"deleted {WHEELS[0]}, whose sha256 differs from the lock: fetching it again"
    assert said[1].startswith("fetching 1 of 2 wheels")
    assert (place.fetched / WHEELS[0]).read_bytes() == (place.served / WHEELS[0]).read_bytes()


def test_a_file_with_a_wrong_hash_is_deleted_even_if_it_cannot_be_fetched_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.complete()
    (place.fetched / WHEELS[0]).write_bytes(b"not a wheel")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place.served / "missing"))
    fails(place)
    assert place.names() == WHEELS[1:]


def test_a_downloaded_wheel_with_a_wrong_hash_is_refused(place: Place) -> None:
    make_wheel(place.served, "tiny_b", "2.0", b"something else")
    message = fails(place)
    assert message.startswith("fetching tiny-a, tiny-b for pin tiny: a wheel's sha256 differs from the lock")
    assert place.names() == []


def test_partial_files_of_a_killed_fetch_are_deleted(place: Place) -> None:
    place.complete()
    partial, of_another_pin = (
        Path(tempfile.mkdtemp(dir=folder.parent, prefix=fetch._partial_prefix(folder)))
        for folder in (place.fetched, place.fetched.with_name("tiny-own-0a1b2c3d"))
    )
    (partial / "half.whl").write_bytes(b"half")
    fetch.fetch(place.pin, place.fetched)
    assert (partial.exists(), of_another_pin.exists()) == (False, True)


def test_files_that_are_not_in_the_lock_are_deleted(place: Place) -> None:
    place.complete()
    (place.fetched / "notes.txt").write_text("mine")
    (place.fetched / "tiny_a-0.9-py3-none-any.whl").write_bytes(b"older")
    (place.fetched / "other-1.0-py3-none-any.whl").write_bytes(b"other")
    (place.fetched / "dangling.whl").symlink_to("nowhere")
    (place.fetched / "folder.whl" / "inner").mkdir(parents=True)
    fetch.fetch(place.pin, place.fetched)
    assert place.names() == WHEELS


def test_another_spelling_of_a_version_in_the_lock_is_the_same_version(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = locks.path_of(place.pin)
    lock.write_text(lock.read_text().replace("tiny-b==2.0", "tiny-b==2.00"))
    pin = make_pin({"tiny-a": "1.0"})
    fetch.fetch(pin, place.fetched)
    capsys.readouterr()
    fetch.fetch(pin, place.fetched)
    assert (capsys.readouterr().err.splitlines(), place.names()) == ([], WHEELS)


def test_a_torch_that_the_hosts_indexes_lack_comes_from_the_pins_own_index(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = make_wheel(tmp_path / "made", "torch", "2.13.0+cpu")
    common = [place.served / name for name in WHEELS]
    write_lock(tmp_path / "locks", [torch, *common])
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", make_simple_index(tmp_path / "host", common))
    pin = make_pin({"torch": "2.13.0+cpu", "tiny-a": "1.0"}, make_simple_index(tmp_path / "own", [torch]))
    fetch.fetch(pin, place.fetched)
    assert place.names() == [*WHEELS, torch.name]


def test_a_package_that_no_index_has_is_one_line_with_its_name(place: Place) -> None:
    (place.served / WHEELS[1]).unlink()
    assert "tiny-b==2.0" in fails(place)
    assert place.names() == []


@pytest.mark.timeout(60)
def test_an_index_that_refuses_connections_is_one_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    assert "the package index refuses connections: check network and proxy" in fails(place)


@pytest.mark.timeout(60)
def test_an_index_that_accepts_and_never_answers_is_one_line(
    place: Place, monkeypatch: pytest.MonkeyPatch, silent_server: socket.socket
) -> None:
    assert int(pip.BOUNDED[pip.BOUNDED.index("--timeout") + 1]) <= 30, "a user waits this long and as long again"
    monkeypatch.setattr(pip, "BOUNDED", (*pip.BOUNDED, "--timeout", "0.3"))
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent_server.getsockname()[1]}/simple")
    assert "the package index does not answer: check network and proxy" in fails(place)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "small-disk"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(argv, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs permission to mount a tmpfs of 1 MB: run as root outside of an unprivileged container")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("over_http", [True, False], ids=["http", "folder"])
def test_a_full_disk_is_one_line_and_leaves_no_partial_wheel(
    small_disk: Path, place: Place, monkeypatch: pytest.MonkeyPatch, over_http: bool
) -> None:
    big = make_wheel(place.served, "tiny_b", "2.0", random.Random(0).randbytes(3_000_000))
    write_lock(locks.LOCKS, [place.served / WHEELS[0], big])
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(place.served))
    with served(handler) as address:
        if over_http:
            monkeypatch.setenv("PIP_FIND_LINKS", f"http://{address}/")
        full = Place(place.pin, place.served, small_disk / "tiny")
        assert "the disk is full: free some space" in fails(full)
    assert full.names() == []


def test_a_folder_that_cannot_be_created_is_one_line(place: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        fetch.fetch(place.pin, tmp_path / "file" / "tiny")
    assert "Not a directory" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", [True, False], ids=["of the row", "of this Python"])
def test_modules_of_the_current_folder_do_not_run(
    target: bool, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pip", "json", "ctypes"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the current folder ran')\n")
    monkeypatch.chdir(tmp_path)
    result = pip.run(
        ["--version"] if not target else ["config", "list"], scratch=tmp_path, pin=place.pin if target else None
    )
    assert "of the current folder" not in result.stdout


_FETCH_UNTIL_TERMINATED = """
import pathlib, signal, sys
from tooling.wheels import pip
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
pip.run(["download", "tiny-a"], scratch=pathlib.Path(sys.argv[1]))
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 7), (signal.SIGKILL, -9)])
def test_pip_ends_with_the_command_that_started_it(
    number: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_server: socket.socket
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent_server.getsockname()[1]}/simple")
    argv = [sys.executable, "-c", _FETCH_UNTIL_TERMINATED, str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT) as process:
        connection, _ = silent_server.accept()
        with connection:
            connection.settimeout(10)
            assert connection.recv(4) == b"GET "  # pip waits for the answer
            process.send_signal(number)
            assert process.wait(timeout=10) == code
            while connection.recv(65536):  # the rest of the request, then the end: pip is gone
                pass
