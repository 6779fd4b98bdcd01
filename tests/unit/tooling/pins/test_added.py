"""`--with`: what each value asks for, and one line for each mistake."""

from pathlib import Path

import pytest

from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.tiny import make_wheel
from tooling.image.choice import Choice
from tooling.pins import added, choose, status
from tooling.pins.status import PinStatus

SHA256 = "a" * 64


def test_requirements_wheels_and_folders_are_told_apart(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", "tiny_a", "1.0")
    found = added.parse(["trl==1.16.0", 'rouge_score>=0.1; python_version >= "3"', str(wheel), str(wheel.parent)])
    assert found.requirements == ("trl==1.16.0", 'rouge_score>=0.1; python_version >= "3"')
    assert (found.wheels, found.folders) == ((wheel,), (wheel.parent,))
    assert found.search == f"--find-links {wheel.parent.as_uri()}\n"
    assert found.wanted.splitlines() == [*found.requirements, wheel.as_uri()]


def test_a_requirements_file_is_read_as_pip_reads_it(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "dist", "tiny_a", "1.0")
    text = f"""# what we train with
--extra-index-url https://user:s3cret@index.invalid/simple
-f links
trl[peft] >= 1.0 --hash=sha256:{SHA256}  # the trainer
tiny-b==2.0 \\
    --hash=sha256:{SHA256} \\
    --hash=sha256:{"b" * 64}
dist/tiny_a-1.0-py3-none-any.whl --hash=sha256:{files.sha256_of(wheel)}
"""
    (tmp_path / "requirements.txt").write_text(text)
    found = added.parse([str(tmp_path / "requirements.txt")])
    assert found.requirements == ("trl[peft]>=1.0", "tiny-b==2.0")
    assert found.wheels == (wheel,)
    assert found.hashes == {
        "trl": frozenset({SHA256}),
        "tiny-b": frozenset({SHA256, "b" * 64}),
        "tiny-a": frozenset({files.sha256_of(wheel)}),
    }
    assert found.index_options == ("--extra-index-url https://user:s3cret@index.invalid/simple",)
    assert found.folders == (tmp_path / "links",)
    assert "s3cret" not in repr(found)


def test_every_mistake_is_one_line_and_no_credential_is_printed(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "pyproject.toml").touch()
    (tmp_path / "empty").mkdir()
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("-r base.txt\ntrl==\n-e .\nours @ https://user:s3cret@host.invalid/ours.whl\n")
    values = ["trl=1.16", f"{tmp_path}/source", f"{tmp_path}/empty", f"{tmp_path}/none.txt", str(requirements)]
    values += [
        "ours @ https://user:s3cret@host.invalid/ours.whl",
        f"{tmp_path}/ours.whl",
        "./x_y-1-py3-none-any.whl",
    ]
    with pytest.raises(UsageError) as caught:
        added.parse(values)
    lines = str(caught.value).splitlines()
    expected = [
        "--with trl=1.16: expected a requirement such as trl==1.16.0",
        f"--with {tmp_path}/source is a source folder: build a wheel",
        f"--with {tmp_path}/empty is a folder without wheels",
        f"--with {tmp_path}/none.txt cannot be read: No such file",
        f"--with {requirements}, line 1: -r is not supported here",
        f"--with {requirements}, line 2: expected a requirement",
        f"--with {requirements}, line 3: -e is not supported here",
        f"--with {requirements}, line 4: a URL: download or build the wheel",
        "--with ours: a URL: download or build the wheel",
        f"--with {tmp_path}/ours.whl: ours.whl is not the name of a wheel",
        "--with ./x_y-1-py3-none-any.whl: there is no such file",
    ]
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)
    assert "s3cret" not in str(caught.value)


def test_a_hash_of_a_requirements_file_is_compared_and_all_its_lines_have_one(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "tiny_a", "1.0")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"--pre\n./{wheel.name} --hash=sha256:{SHA256}\ntrl==1.0\n")
    with pytest.raises(UsageError) as caught:
        added.parse([str(requirements)])
    assert str(caught.value).splitlines() == [
        f"--with {requirements}, line 2: {wheel.name} has the sha256 {files.sha256_of(wheel)}, "
        "none of those in this line",
        f"--with {requirements}, line 3: --hash is missing, but line 2 has one: as for pip, all packages of a "
        "file need a hash, or none",
    ]


@pytest.mark.parametrize(
    "line", ["--extra-index-url\t{}", "--extra-index-url  {}", "--index-url={}", "-i{}", "-i {}", "-f{}"]
)
def test_an_option_is_read_as_pip_reads_it(tmp_path: Path, line: str) -> None:
    url = "https://me:secret@index.invalid/simple"
    (tmp_path / "more.txt").write_text(f"{line.format(url)}\ntrl\n")
    (option,) = added.parse([f"{tmp_path}/more.txt"]).index_options
    assert option.split() == [*line.removesuffix("{}").strip("=").split(), url]


@pytest.mark.parametrize(("line", "name"), [("--url\t{}", "--url"), ("-c{}", "-c")])
def test_an_option_that_is_not_supported_is_named_without_its_value(tmp_path: Path, line: str, name: str) -> None:
    (tmp_path / "more.txt").write_text(line.format("https://me:secret@index.invalid/simple"))
    with pytest.raises(UsageError, match=f"line 1: {name} is not supported here: give"):
        added.parse([f"{tmp_path}/more.txt"])


def test_a_file_without_a_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("# nothing\n")
    for value in (f"{tmp_path}/empty.txt", "/dev/null"):
        with pytest.raises(UsageError, match=f"--with {value} names no package"):
            added.parse([value])


def test_a_folder_alone_is_refused_because_it_is_only_searched(tmp_path: Path) -> None:
    make_wheel(tmp_path, "tiny_a", "1.0")
    expected = f"--with {tmp_path} names no package: a folder is only searched, so also pass --with NAME"
    with pytest.raises(UsageError, match=expected):
        added.parse([str(tmp_path)])


def test_the_image_has_a_name_of_its_own_that_depends_on_what_was_asked_for(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "tiny_a", "1.0")
    pins = [choose.choose(packages=values) for values in (["trl"], ["trl==1.16.0"], ["trl", str(wheel)])]
    make_wheel(tmp_path, "tiny_a", "1.0", payload=b"changed")
    pins.append(choose.choose(packages=["trl", str(wheel)]))
    make_wheel(tmp_path / "more", "tiny_b", "1.0")
    pins.append(choose.choose(packages=["trl", f"{tmp_path}/more"]))
    (tmp_path / "index.txt").write_text("--index-url https://user:s3cret@index.invalid/simple\n")
    pins.append(choose.choose(packages=["trl", f"{tmp_path}/index.txt"]))
    assert len({pin.image for pin in pins}) == 6
    assert all(pin.name.startswith("2.13-with-") and pin.without_added == choose.choose() for pin in pins)
    assert choose.choose(packages=["trl"]).image == pins[0].image
    (tmp_path / "index.txt").write_text("--index-url https://user:ren3wed@index.invalid/simple\n")
    assert choose.choose(packages=["trl", f"{tmp_path}/index.txt"]).image == pins[-1].image
    assert choose.choose(packages=["trl"]).options == "--pin 2.13 --with trl"
    assert not status.record(pins[0], PinStatus.TESTED, "./inv demo", tmp_path / "status.json")


def test_an_image_lock_cannot_be_combined_with_packages() -> None:
    with pytest.raises(UsageError, match="do not combine it with --pin, --set, --with"):
        Choice(with_=("trl",), image_lock="image.lock.json")
    assert choose.choose("2.13", packages=["a>1"]).options == "--pin 2.13 --with 'a>1'"


def test_a_file_in_the_home_of_an_unknown_user_is_missing() -> None:
    with pytest.raises(UsageError, match=r"^--with ~nobody-here/x-1-py3-none-any\.whl: there is no such file$"):
        added.parse(["~nobody-here/x-1-py3-none-any.whl"])
