"""The lock of a user's own packages: no version of the row changes, and a conflict names both sides."""

import os
import shutil
import subprocess
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import sha256_of
from tests.answers import answer, served
from tests.unit.tooling.tiny import make_pin, make_simple_index, make_wheel, write_lock
from tooling.pins import added as packages
from tooling.pins.pin import Pin
from tooling.wheels import added, fetch, locks, pip


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The two wheels of a row, beside an index with them, a newer one and packages that need them."""
    folder = tmp_path_factory.mktemp("wheels")
    made = folder / "made"
    wheels = [make_wheel(made, "tiny_a", "1.0"), make_wheel(made, "tiny_b", "2.0")]
    others = [
        make_wheel(made, "fits", "1.0", requires=["tiny-a", "helper"]),
        make_wheel(made, "fits", "2.0", requires=["tiny-a>=2", "helper"]),
        make_wheel(made, "helper", "3.0", requires=["tiny-b<3"]),
        make_wheel(made, "new", "1.0", requires=["tiny-a>=2"]),
        make_wheel(made, "old_helper", "1.0", requires=["helper<3"]),
    ]
    others += [make_wheel(made, "moves_on", f"{number}.0", requires=["tiny-a>=2"]) for number in range(1, 151)]
    others += [make_wheel(made, "moves_on", "0.1")]
    index = folder / "index"
    make_simple_index(index, [*wheels, make_wheel(made, "tiny_a", "2.0"), *others])
    for page in (index / "simple").iterdir():  # every version of a package
        links = "".join(f'<a href="{wheel.name}">{wheel.name}</a>' for wheel in sorted(page.glob("*.whl")))
        (page / "index.html").write_text(f"<!DOCTYPE html>{links}")
    return wheels


@pytest.fixture
def row(wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pin:
    """A row of the two wheels, and the index."""
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    write_lock(tmp_path / "locks", wheels)
    index = wheels[0].parents[1] / "index"
    (tmp_path / "index").symlink_to(index)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_INDEX_URL", (index / "simple").as_uri())
    monkeypatch.setattr(locks, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(locks, "OWN_LOCKS", tmp_path / "own")
    monkeypatch.setattr(fetch, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(added, "CACHE", tmp_path)
    (tmp_path / "wheels" / "tiny").mkdir(parents=True)
    for wheel in wheels:  # as if they had been fetched
        shutil.copy(wheel, tmp_path / "wheels" / "tiny")
    return make_pin({"tiny-a": "1.0", "tiny-b": "2.0"})


def with_(row: Pin, *values: str) -> Pin:
    return row.with_added(packages.parse(values))


def refused(row: Pin, *values: str) -> str:
    """The line of a lock that cannot be written. Asserts that nothing is written."""
    pin = with_(row, *values)
    with pytest.raises(UsageError) as caught:
        added.lock(pin)
    assert "\n" not in str(caught.value)
    assert not locks.added_path_of(pin).exists()
    return str(caught.value)


def versions(pin: Pin) -> dict[str, str]:
    return {name: wheel.version for name, wheel in locks.read_added(pin).items()}


def test_the_newest_version_that_fits_the_row_is_locked_with_what_it_needs(row: Pin) -> None:
    pin = with_(row, "fits")
    added.lock(pin)
    assert versions(pin) == {"fits": "1.0", "helper": "3.0"}
    folder = fetch.fetch_added(pin)
    assert sorted(path.name for path in folder.iterdir()) == [
        "fits-1.0-py3-none-any.whl",
        "helper-3.0-py3-none-any.whl",
    ]
    assert sorted(path.name for path in fetch.fetch(pin).iterdir()) == [
        "tiny_a-1.0-py3-none-any.whl",
        "tiny_b-2.0-py3-none-any.whl",
    ]


def test_a_conflict_with_the_row_names_both_sides(row: Pin) -> None:
    expected = "pin tiny has tiny-a 1.0, but new 1.0 depends on tiny-a>=2: choose another version, another pin, or"
    assert refused(row, "new").startswith(expected)
    expected = "pin tiny has tiny-a 1.0, but --with asks for tiny-a==2.0"
    assert refused(row, "tiny-a==2.0").startswith(expected)


def test_a_long_search_for_a_version_ends_with_the_reason_why_the_newest_does_not_fit(
    row: Pin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(added, "_PATIENCE_SECONDS", 0.01)
    expected = "pin tiny has tiny-a 1.0, but moves-on 150.0 depends on tiny-a>=2: choose another version, another"
    assert refused(row, "moves_on").startswith(expected)


def test_an_old_version_is_found_after_many_that_do_not_fit(row: Pin) -> None:
    pin = with_(row, "moves_on")
    added.lock(pin)
    assert versions(pin) == {"moves-on": "0.1"}


def test_packages_that_contradict_each_other_are_named(row: Pin) -> None:
    message = refused(row, "old_helper", "helper==3.0")
    assert message.startswith("the packages of --with contradict each other: ")
    assert "old-helper 1.0 depends on helper<3" in message
    assert "--with asks for helper==3.0" in message


def test_a_package_without_a_wheel_is_one_line_that_tells_how_to_build_one(row: Pin) -> None:
    message = refused(row, "only-sources==1.0")
    assert message.startswith("no wheel of only-sources==1.0 for Python 3.11 was found")
    assert "pip wheel --no-deps --wheel-dir wheels only-sources and add --with ./wheels" in message


class _Refusing(BaseHTTPRequestHandler):
    """An index or a proxy that refuses every request."""

    status = 401

    def do_GET(self) -> None:
        answer(self, {}, self.status)

    def do_CONNECT(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        return


@pytest.mark.parametrize(
    ("status", "proxy", "user", "expected"),
    [
        (401, False, "", "the index requires credentials"),
        (401, False, "me:secret@", "the index requires credentials"),
        (503, False, "", "the package index reports an internal error"),
        (407, True, "me:secret@", "the proxy requires credentials"),
        (403, True, "", "the proxy refuses to connect"),
        (403, False, "", "no wheel of mine for Python 3.11 was found: check the name"),
    ],
)
def test_an_index_that_refuses_is_named_instead_of_a_missing_wheel(
    row: Pin, monkeypatch: pytest.MonkeyPatch, status: int, proxy: bool, user: str, expected: str
) -> None:
    with served(type("Handler", (_Refusing,), {"status": status})) as address:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://{user}{address}/simple")
        if proxy:
            monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
            monkeypatch.setenv("PIP_PROXY", f"http://{user}{address}")
        message = refused(row, "mine")
    assert expected in message
    assert "secret" not in message


def test_colors_that_the_user_forces_do_not_hide_pips_reason(row: Pin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "old-helper 1.0 depends on helper<3" in refused(row, "old_helper", "helper==3.0")
    done = pip.run(["install", "--dry-run", "missing"], scratch=locks.LOCKS)
    assert str(pip.failure("x", done)) == "x: No matching distribution found for missing"


def test_a_wheel_of_401_kilobytes_is_no_refusal() -> None:
    output = "Downloading a-1.0-py3-none-any.whl (401 kB)\nERROR: nothing found\n"
    assert str(pip.failure("x", CompletedProcess([], 1, output))) == "x: nothing found"


def test_a_local_wheel_and_a_folder_of_wheels_need_no_index(
    row: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = make_wheel(tmp_path / "my own", "mine", "1.0", requires=["helper", "tiny-b"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    make_wheel(tmp_path / "its links", "helper", "3.0")
    pin = with_(row, str(mine), str(tmp_path / "its links"))
    added.lock(pin)
    assert versions(pin) == {"mine": "1.0", "helper": "3.0"}
    assert len(list(fetch.fetch_added(pin).iterdir())) == 2
    assert str(tmp_path) not in locks.added_path_of(pin).read_text()


def test_a_local_wheel_does_not_replace_a_package_of_the_row(row: Pin, tmp_path: Path) -> None:
    mine = make_wheel(tmp_path / "mine", "tiny_a", "1.0", payload=b"patched")
    assert refused(row, str(mine)).startswith("--with tiny_a-1.0-py3-none-any.whl: pin tiny has tiny-a 1.0")


def test_a_wheel_with_another_hash_than_the_requirements_file_is_refused(row: Pin, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(f"helper==3.0 --hash=sha256:{'0' * 64}\n")
    assert refused(row, str(tmp_path / "requirements.txt")).startswith(
        "helper 3.0: the wheel of the index has the sha256"
    )


def test_a_hash_of_one_package_makes_a_hash_necessary_for_what_it_needs(row: Pin, tmp_path: Path) -> None:
    requirements, index = tmp_path / "requirements.txt", tmp_path / "index" / "simple"
    fits, helper = (
        f"{path.name.split('-')[0]}=={path.name.split('-')[1]} --hash=sha256:{sha256_of(path)}"
        for path in (index / "fits/fits-1.0-py3-none-any.whl", index / "helper/helper-3.0-py3-none-any.whl")
    )
    requirements.write_text(f"{fits}\n")
    message = refused(row, str(requirements))
    assert message.startswith("--hash is missing for helper, but the requirements file has one for other packages")
    assert f"add {helper} to the file" in message
    requirements.write_text(f"{fits}\n{helper}\n")
    added.lock(with_(row, str(requirements)))
    assert refused(row, str(requirements), "moves_on==0.1").startswith("--hash is missing for moves-on,")
    mine = make_wheel(tmp_path / "mine", "mine", "1.0", requires=["helper"])
    requirements.write_text(f"{helper}\n")
    added.lock(with_(row, str(requirements), str(mine)))
    requirements.write_text(f"./mine/{mine.name} --hash=sha256:{sha256_of(mine)}\n")
    assert refused(row, str(requirements)).startswith("--hash is missing for helper,")


def test_a_hash_of_a_package_of_the_row_is_compared_with_its_lock(row: Pin, tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"tiny-a==1.0 --hash=sha256:{'0' * 64}\n")
    assert refused(row, str(requirements)).startswith("tiny-a 1.0: the wheel of pin tiny has the sha256")
    requirements.write_text(f"tiny-a==1.0 --hash=sha256:{locks.read(row)['tiny-a'].sha256}\n")
    added.lock(with_(row, str(requirements)))


def test_a_lock_of_packages_is_itself_a_requirements_file(row: Pin) -> None:
    pin = with_(row, "fits")
    added.lock(pin)
    again = with_(row, str(locks.added_path_of(pin)))
    added.lock(again)
    assert versions(again) == versions(pin)


def test_what_the_row_has_adds_nothing(row: Pin, capsys: pytest.CaptureFixture[str]) -> None:
    pin = with_(row, "tiny-a")
    added.lock(pin)
    assert versions(pin) == {}
    assert capsys.readouterr().err.splitlines()[-1] == "pin tiny has all of these packages already"
    assert list(fetch.fetch_added(pin).iterdir()) == []


def test_packages_are_resolved_again_only_when_the_row_changed(
    row: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = with_(row, "fits")
    added.ensure(pin)
    monkeypatch.setattr(added, "_resolve", lambda *_: pytest.fail("resolved again"))
    added.ensure(pin)
    monkeypatch.undo()
    lock = tmp_path / "locks" / "tiny.txt"
    monkeypatch.setattr(locks, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(locks, "OWN_LOCKS", tmp_path / "own")
    assert locks.extends_the_present_row(pin)
    lock.write_text(lock.read_text() + "# changed\n")
    assert not locks.extends_the_present_row(pin)


def test_a_wheel_that_another_pin_has_is_linked_and_not_fetched(
    row: Pin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = fetch.fetch(row)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    capsys.readouterr()
    second = fetch.fetch(row, fetch.WHEELS / "second")
    assert capsys.readouterr().err.splitlines() == ["reusing 2 wheels that another pin has"]
    wheel = "tiny_a-1.0-py3-none-any.whl"
    assert (first / wheel).samefile(second / wheel)
    (first / wheel).write_bytes(b"modified after its verification")  # both names of the file
    with pytest.raises(UsageError, match="tiny-a"):
        fetch.fetch(row, fetch.WHEELS / "second")
    assert f"deleted {wheel}, whose sha256 differs from the lock: fetching it again" in capsys.readouterr().err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("form", ["archive", "folder", "repository"])
@pytest.mark.parametrize("transitive", [False, True], ids=["direct", "transitive"])
def test_the_build_code_of_a_package_never_runs(form: str, transitive: bool, row: Pin, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "setup.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nimport setuptools\nsetuptools.setup()\n"
    )
    (source / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'setup'\nbackend-path = ['.']\n"
    )
    url = source.as_uri()
    if form == "archive":
        url = Path(shutil.make_archive(str(tmp_path / "evil-1.0"), "gztar", tmp_path, "source")).as_uri()
    elif form == "repository":
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "Add"]):
            subprocess.run(["git", "-C", str(source), *words], check=True)
        url = f"git+{url}"
    outer = make_wheel(tmp_path / "given", "outer", "1.0", requires=[f"evil @ {url}"])
    if transitive:
        make_wheel(tmp_path / "given", "outermost", "1.0", requires=["outer"])
        outer = next((tmp_path / "given").glob("outermost*"))
    line = refused(row, str(outer), str(tmp_path / "given"))
    assert "evil comes from " in line
    assert "expected a wheel" in line
    assert not (tmp_path / "ran").exists()
