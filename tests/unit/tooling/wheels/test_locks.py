"""images/locks/<pin>.txt: read strictly, and written only if every package is resolved."""

import errno
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.tiny import make_pin, make_simple_index, make_wheel, write_lock
from tooling.cli import tasks_dev
from tooling.pins import parse, status
from tooling.pins.pin import DEBIAN_RELEASES, DebianRelease, Pin, TorchSource
from tooling.pins.status import PinStatus
from tooling.wheels import added, locks, resolve
from tooling.wheels.resolve import LockedWheel

SHA256 = "a" * 64


@pytest.fixture(autouse=True)
def lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setattr(locks, "LOCKS", folder)
    return folder


PROVED = [row for row in parse.load().pins.values() if status.of(row).torch_source is TorchSource.ROW]


@pytest.mark.parametrize(
    "pin", [row for row in PROVED if status.of(row).status is not PinStatus.LISTED], ids=lambda pin: pin.name
)
def test_every_proved_pin_has_a_lock_with_the_pins_packages(pin: Pin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    wheels = locks.read(pin)
    assert all(wheels[name].version == version for name, version in pin.packages.items())
    assert len(wheels) > len(pin.packages)


@pytest.mark.parametrize(
    ("files", "source", "expected"),
    [
        ([], "", "2.8"),
        (["2.8.txt", "2.8-default-torch.txt"], "", "2.8"),
        (["2.8-default-torch.txt"], "", "2.8-default-torch"),
        (["2.8-default-torch.txt"], "row", "2.8"),
        (["2.8.txt"], "default", "2.8-default-torch"),
    ],
    ids=["none", "both", "default only", "row is wanted", "default is wanted"],
)
def test_without_an_option_the_build_of_torch_is_the_locked_one(
    files: list[str], source: str, expected: str, lock_folder: Path
) -> None:
    for file in files:
        (lock_folder / file).touch()
    assert locks.choose_pin("2.8", (), source).name == expected
    assert locks.choose_pin("2.8", ("transformers=4.55.3",)).torch_source is TorchSource.ROW


def test_every_row_can_be_built_without_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for name in parse.load().pins:
        assert locks.path_of(locks.choose_pin(name)).is_file()


def test_a_lock_is_read_by_canonical_name(lock_folder: Path) -> None:
    (lock_folder / "tiny.txt").write_text(f"# comment\n\nTiny_A==1.0 \\\n    --hash=sha256:{SHA256}\n")
    expected = {"tiny-a": LockedWheel("tiny-a", "1.0", SHA256)}
    assert locks.read(make_pin({"tiny.A": "1.0"})) == expected


def test_a_version_without_its_last_zero_is_the_same_version(lock_folder: Path) -> None:
    (lock_folder / "tiny.txt").write_text(f"tiny-a==2.13.0+cpu --hash=sha256:{SHA256}\n")
    assert locks.read(make_pin({"tiny-a": "2.13+cpu"}))["tiny-a"].version == "2.13.0+cpu"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(None, "pin tiny has no tiny.txt: create it with ./inv dev lock --pin tiny", id="missing"),
        pytest.param("", "tiny.txt locks tiny-a nothing, but versions.toml has 1.0", id="empty"),
        pytest.param(
            f"tiny-b==1.0 --hash=sha256:{SHA256}\n",
            "locks tiny-a nothing, but versions.toml has 1.0",
            id="absent",
        ),
        pytest.param(
            f"tiny-a==1.1 --hash=sha256:{SHA256}\n",
            "locks tiny-a 1.1, but versions.toml has 1.0",
            id="other-version",
        ),
        pytest.param("tiny-a==1.0\n", "'tiny-a==1.0' is not 'name==version --hash=sha256:…'", id="no-hash"),
        pytest.param("tiny-a==1.0 \\\n", "is not 'name==version --hash=sha256:…'", id="torn-line"),
        pytest.param("tiny-a==1.0 \\\n    --hash=sha256:abc\n", "is not 'name==version", id="torn-hash"),
        pytest.param(f"tiny-a --hash=sha256:{SHA256}\n", "is not 'name==version", id="no-version"),
        pytest.param(f"tiny-a==new --hash=sha256:{SHA256}\n", "is not 'name==version", id="other-word"),
        pytest.param(f"tiny-a>=1.0 --hash=sha256:{SHA256}\n", "is not 'name==version", id="range"),
        pytest.param(
            f"tiny-a==1.0 --hash=sha256:{SHA256} --hash=sha256:{SHA256}\n",
            "is not 'name==version",
            id="two-hashes",
        ),
        pytest.param("<<<<<<< HEAD\n", "'<<<<<<< HEAD' is not 'name==version", id="conflict-marker"),
    ],
)
def test_an_unusable_lock_is_one_line_with_the_command_that_writes_it(
    lock_folder: Path, text: str | None, expected: str
) -> None:
    if text is not None:
        (lock_folder / "tiny.txt").write_text(text)
    with pytest.raises(UsageError) as caught:
        locks.read(make_pin({"tiny-a": "1.0"}))
    assert expected in str(caught.value)
    assert "./inv dev lock --pin tiny" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == contract.USAGE_EXIT_CODE


def test_a_lock_is_read_as_it_was_written(
    lock_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = [make_wheel(tmp_path / "links", "tiny_a", "1.0"), make_wheel(tmp_path / "links", "tiny_b", "2.0")]
    monkeypatch.setattr(resolve, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    pin = make_pin({"tiny-a": "1.0", "tiny-b": "2.0"})
    assert locks.write(pin) == lock_folder / "tiny.txt"
    written = (lock_folder / "tiny.txt").read_text()
    read = locks.read(pin)
    assert [wheel.sha256 for wheel in read.values()] == [
        hashlib.sha256(w.read_bytes()).hexdigest() for w in wheels
    ]
    assert str(tmp_path) not in written
    assert sorted(path.name for path in lock_folder.iterdir()) == ["tiny-build.txt", "tiny.txt"]


def test_a_lock_whose_second_file_cannot_be_written_is_written_again(
    lock_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    def write_once(path: Path, _text: str) -> None:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)

    monkeypatch.setattr(locks, "write_with_folder", write_once)
    monkeypatch.setattr(resolve, "resolve", lambda _pin: ([], []))
    pin = make_pin({"tiny-a": "1.0"})
    with pytest.raises(OSError, match="No space left"):
        locks.write(pin)
    assert written == [lock_folder / "tiny-build.txt"]  # a build looks for tiny.txt


def test_the_old_lock_stays_when_a_package_cannot_be_resolved(
    lock_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path / "links", "tiny_a", "1.0")
    before = write_lock(lock_folder, [wheel]).read_bytes()
    monkeypatch.setattr(resolve, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    with pytest.raises(UsageError) as caught:
        locks.write(make_pin({"tiny-a": "1.0", "tiny-missing": "3.0"}))
    assert "pin tiny cannot be resolved" in str(caught.value)
    assert "tiny-missing==3.0" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (lock_folder / "tiny.txt").read_bytes() == before
    assert sorted(path.name for path in lock_folder.iterdir()) == ["tiny-build.txt", "tiny.txt"]


def test_a_torch_that_the_hosts_indexes_lack_is_locked_from_the_pins_own_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = make_wheel(tmp_path / "made", "torch", "2.13.0+cpu")
    other = make_wheel(tmp_path / "made", "tiny_a", "1.0")
    monkeypatch.setattr(resolve, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", make_simple_index(tmp_path / "host", [other]))
    pin = make_pin({"torch": "2.13.0+cpu", "tiny-a": "1.0"}, make_simple_index(tmp_path / "own", [torch]))
    locks.write(pin)
    assert locks.read(pin)["torch"].sha256 == hashlib.sha256(torch.read_bytes()).hexdigest()


OTHER_PYTHONS = [
    pytest.param(DEBIAN_RELEASES[11], ["tiny-a", "tiny-old"], id="3.9"),
    pytest.param(DEBIAN_RELEASES[13], ["tiny-a", "tiny-new"], id="3.13"),
]


@pytest.mark.parametrize(("release", "expected"), OTHER_PYTHONS)
def test_a_lock_for_another_python_has_the_packages_of_its_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: DebianRelease, expected: list[str]
) -> None:
    links = tmp_path / "links"
    wanted = ['tiny-old==1.0; python_version < "3.10"', 'tiny-new==1.0; python_full_version >= "3.13.0"']
    wheels = {
        "tiny-a": make_wheel(links, "tiny_a", "1.0", requires=wanted),
        "tiny-old": make_wheel(links, "tiny_old", "1.0"),
        "tiny-new": make_wheel(links, "tiny_new", "1.0"),
    }
    monkeypatch.setattr(resolve, "CACHE", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    pin = replace(make_pin({"tiny-a": "1.0"}), debian=release, python=release.python)
    locks.write(pin)
    read = locks.read(pin)
    assert sorted(read) == sorted(expected)
    assert all(read[name].sha256 == hashlib.sha256(wheels[name].read_bytes()).hexdigest() for name in expected)


def test_the_lock_of_a_users_own_combination_is_outside_of_the_repository(
    lock_folder: Path, tmp_path: Path
) -> None:
    own = make_pin({"tiny-a": "1.0"}).with_versions({"tiny-a": "1.1"})
    assert locks.path_of(own).parent == locks.OWN_LOCKS
    assert lock_folder not in locks.path_of(own).parents


@pytest.mark.parametrize(
    ("packages", "expected"), [((), ["2.8"]), (("trl==1.16.0",), ["2.8-default-torch"])], ids=["row", "added"]
)
def test_added_packages_are_locked_again_on_top_of_the_lock_that_a_build_uses(
    lock_folder: Path, monkeypatch: pytest.MonkeyPatch, packages: tuple[str, ...], expected: list[str]
) -> None:
    (lock_folder / "2.8-default-torch.txt").touch()
    found: list[str] = []
    monkeypatch.setattr(locks, "write", lambda pin: found.append(pin.name))
    monkeypatch.setattr(added, "lock", lambda pin: found.append(pin.without_added.name))
    tasks_dev.lock.body("2.8", packages)
    assert found == expected
