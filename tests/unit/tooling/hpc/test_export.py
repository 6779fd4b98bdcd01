"""./inv export: what is checked before an image is built, how the output appears, and the files of the image."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tooling.basis.paths import ROOT
from tooling.engine import docker, podman
from tooling.engine.api import PODMAN, Engine
from tooling.engine.docker import LocalImage
from tooling.hpc import export
from tooling.image.build import Image
from tooling.image.choice import Choice

CONFIGURATION = {"Env": ["PATH=/opt/venv/bin", "A=1 2"]}
ENGINE = Engine("unix:///var/run/docker.sock", 2)
NONE = export._NO_DEVICES
Run = Callable[[Callable[[Path], object], Path], None]
IMAGE = LocalImage("sha256:" + "1" * 64, 1, {"cpu-train-stack.pin": "2.13"}, (), CONFIGURATION)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(export, "CACHE", folder)
    monkeypatch.setattr(docker, "_ONCE", folder / "once")
    return folder


@pytest.mark.parametrize(
    ("form", "output", "expected"),
    [
        ("sif", "new", "--format is 'sif', expected one of oci, docker, tar, charliecloud, apptainer, enroot"),
        ("oci", "", "--output is missing"),
        ("oci", "file", "which exists, expected a new path"),
        ("oci", "none/new", "expected a new path in a folder that exists"),
    ],
)
def test_a_bad_option_is_reported(form: str, output: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=expected):
        export.check(form, str(tmp_path / output) if output else "")


def test_a_folder_that_may_not_be_entered_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> bool:  # as Python 3.11 does, whoever runs the tests
        raise PermissionError(13, "Permission denied", str(path))

    new = tmp_path / "closed" / "new"
    with monkeypatch.context() as closing:
        closing.setattr(Path, "is_dir", closed)
        with pytest.raises(
            UsageError, match=f"^--output {new} cannot be written: Permission denied: choose another"
        ):
            export.check("docker", str(new))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("apptainer", "apptainer is not on PATH: install it, or use --format docker"),
        ("enroot", "enroot is not on PATH: install it, or push the image"),
    ],
)
def test_a_program_is_needed_for_its_format_only(
    program: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert export.check("docker", str(tmp_path / "new")) == tmp_path / "new"
    with pytest.raises(UsageError, match=expected):
        export.check(program, str(tmp_path / "new"))


def test_an_export_to_another_folder_removes_what_a_killed_one_has_left(cache: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    code = f"""
import os
from pathlib import Path
from tooling.hpc import export
export.CACHE = Path({str(cache)!r})
with export._draft(Path("one/new")) as draft:
    draft.write_text("half")
    os.kill(os.getpid(), 9)
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "entrypoints")))}
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ).returncode == -9
    assert [*(tmp_path / "one").glob(".*/new")] != []
    with export._draft(tmp_path / "two" / "new"):
        assert [*(tmp_path / "one").iterdir()] == []
    assert [*(cache / "exports").iterdir()] == []


def test_the_files_describe_the_image() -> None:
    assert json.loads(export.facts(IMAGE)) == {"image": IMAGE.id, "labels": {"cpu-train-stack.pin": "2.13"}}
    assert export.environment(IMAGE) == "PATH=/opt/venv/bin\nA=1 2\n"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Export an image that exists, with a writer of the test."""

    def run(write: Callable[[Path], object], output: Path) -> None:
        monkeypatch.setitem(export._WRITERS, "docker", lambda _engine, _image, path: write(path))
        export.run(Choice(), "docker", str(output))

    monkeypatch.setattr(Choice, "ensure", lambda _self: (ENGINE, Image("made", IMAGE.id, 1, False, 0.0)))
    monkeypatch.setattr(docker, "read_image_at", lambda _endpoint, _id: IMAGE)
    return run


SOCKET = "unix:///run/user/1000/podman/podman.sock"


@pytest.mark.parametrize(
    ("engine", "saves"),
    [
        (ENGINE, ["docker", "image", "save"]),
        (
            Engine(SOCKET, 2, PODMAN),
            ["podman", "--remote", f"--url={SOCKET}", "image", "save", "--quiet", "--format=docker-archive"],
        ),
    ],
    ids=["docker", "podman"],
)
def test_apptainer_reads_an_archive_that_the_chosen_engine_saves(
    engine: Engine, saves: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(podman, "installed", lambda: True)
    monkeypatch.setattr(export, "_piped", ran.append)
    export._apptainer(engine, IMAGE, tmp_path / "image.sif")
    archive = tmp_path / "image.sif.archive"
    assert ran == [
        [*saves, f"--output={archive}", IMAGE.id],
        ["apptainer", "build", str(tmp_path / "image.sif"), f"docker-archive:{archive}"],
    ]


def test_devices_are_left_out_where_only_root_can_make_them(tmp_path: Path) -> None:
    for name in ("dev", "usr/dev"):
        (tmp_path / "made" / name).mkdir(parents=True)
        (tmp_path / "made" / name / "null").touch()
    export._unpack(["tar", "--create", f"--directory={tmp_path / 'made'}", "dev", "usr"], tmp_path / "new", *NONE)
    assert not list((tmp_path / "new/dev").iterdir())
    assert (tmp_path / "new/usr/dev/null").is_file()


def test_devices_are_removed_from_folders_of_any_depth(tmp_path: Path) -> None:
    try:
        subprocess.run(["mkdir", "-p", "/".join(["d"] * 1500)], cwd=tmp_path, check=True)
        if os.geteuid() == 0:
            os.mknod(tmp_path / "d/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (tmp_path / "d/link").symlink_to("/dev/null")
        export._remove_devices(tmp_path)
        assert not (tmp_path / "d/null").exists()
        assert (tmp_path / "d/link").is_symlink()
    finally:  # pytest cannot delete it
        subprocess.run(["rm", "-rf", tmp_path], check=True)


@pytest.fixture
def unpack(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Export an archive of a program's output, with a tar that cannot write."""
    (tmp_path / "bin").mkdir()
    tar = tmp_path / "bin" / "tar"
    cause = "tar: opt/a: Cannot write: No space left on device"
    tar.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{cause}\ntar: Exiting with failure status' >&2\nexit 2\n")
    tar.chmod(0o755)
    monkeypatch.setenv("PATH", str(tar.parent), prepend=os.pathsep)
    return lambda program: run(lambda path: export._unpack(["sh", "-c", program], path), tmp_path / "new")


def test_a_full_disk_is_the_cause_of_an_archive_that_cannot_be_unpacked(unpack: Callable[[str], None]) -> None:
    with pytest.raises(
        UsageError, match=r"^--output .*/new cannot be written: tar: .*No space left on device: choose"
    ):
        unpack("echo archive")


def test_a_command_that_fails_is_the_cause_of_an_incomplete_archive(unpack: Callable[[str], None]) -> None:
    with pytest.raises(UsageError, match=r"^sh -c .* failed: the engine is gone$"):
        unpack("echo the engine is gone >&2; exit 1")


def test_a_connection_that_breaks_is_the_cause_although_tar_ends_well(
    unpack: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "bin" / "tar").write_text("#!/bin/sh\nexec cat >/dev/null\n")
    with pytest.raises(UsageError, match=r"^sh -c .* failed: client_loop: send disconnect: Broken pipe$"):
        unpack("echo 'client_loop: send disconnect: Broken pipe' >&2; exit 1")


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("end", "reason"),
    [("exit 1", "tar ended with 1"), ("kill -9 $$", "tar ended with -9")],
    ids=["error", "killed"],
)
def test_a_tar_that_ends_early_is_the_cause(
    end: str, reason: str, unpack: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "bin" / "tar").write_text(f"#!/bin/sh\n{end}\n")
    with pytest.raises(UsageError, match=f"/new cannot be written: {reason}: choose"):
        unpack("echo warning >&2; exec head -c 10000000 /dev/zero")


def test_the_output_appears_when_it_is_complete(tmp_path: Path, run: Run) -> None:
    def write(path: Path) -> None:
        assert (path.name, path.exists()) == ("image.sif", False)
        path.write_text("image")
        assert not (tmp_path / "image.sif").exists()

    run(write, tmp_path / "image.sif")
    assert [path.name for path in tmp_path.iterdir()] == ["image.sif"]


def test_what_another_export_wrote_meanwhile_is_kept(tmp_path: Path, run: Run) -> None:
    def write(path: Path) -> None:
        (tmp_path / "new").write_text("of another export")
        path.write_text("ours")

    with pytest.raises(UsageError, match="which exists, expected a new path"):
        run(write, tmp_path / "new")
    assert (tmp_path / "new").read_text() == "of another export"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_failure_is_one_line_and_leaves_nothing(tmp_path: Path, run: Run) -> None:
    with pytest.raises(UsageError, match=r"--output .*/new cannot be written: .*No such file"):
        run(lambda path: (path / "file").touch(), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_reported_before_the_build(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Choice, "ensure", lambda _self: pytest.fail("the image was built"))
    with pytest.raises(UsageError, match="--output /proc/new cannot be written"):
        run(Path.touch, Path("/proc/new"))


def test_a_link_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "none")
    with pytest.raises(UsageError, match="which exists"):
        export.check("docker", str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()


@pytest.fixture
def charliecloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """Export the files of a folder as a container's, to the returned folder."""

    @contextmanager
    def created(_image: LocalImage, _client: object) -> Iterator[str]:
        yield "created"

    def export_tree(tree: Path) -> Path:
        program = tmp_path / "docker"
        program.write_text(f"#!/bin/sh\nexec tar --create --directory={tree} .\n")
        program.chmod(0o755)
        monkeypatch.setattr(Engine, "client", (str(program),))
        export._charliecloud(ENGINE, IMAGE, tmp_path / "new")
        return tmp_path / "new"

    monkeypatch.setattr(docker, "created", created)
    return export_tree


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("opt/cpu-train-stack/image.json", "host/file"),
        ("opt/cpu-train-stack", "host"),
        ("opt", "host"),
        ("ch/environment", "host/file"),
        ("ch/environment", "host/new"),
        ("ch", "host"),
        ("etc/hosts", "host/new"),
        ("etc", "host"),
        ("mnt", "host/new"),
        ("home", "host"),
    ],
)
@pytest.mark.parametrize("absolute", [True, False], ids=["absolute", "relative"])
def test_links_of_an_image_are_never_followed(
    name: str, target: str, absolute: bool, tmp_path: Path, charliecloud: Callable[[Path], Path]
) -> None:
    tree, host = tmp_path / "tree", tmp_path / "host"
    host.mkdir()
    (host / "file").write_text("of the host")
    link = tree / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / target if absolute else Path(*[".."] * len(Path(name).parts)) / target)
    with pytest.raises(
        UsageError, match=rf"^the image's /{name} is a symbolic link, expected .*: use --format oci$"
    ):
        charliecloud(tree)
    assert {path.name: path.read_text() for path in host.iterdir()} == {"file": "of the host"}


@pytest.mark.parametrize("name", ["opt", "./opt/cpu-train-stack", "opt/cpu-train-stack/image.json"])
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE], ids=["symbolic", "hard"])
def test_a_link_on_the_way_to_our_file_in_an_archive_is_refused(
    name: str, kind: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that unpack the archive write through it."""

    @contextmanager
    def created(_image: LocalImage, _client: object) -> Iterator[str]:
        yield "created"

    def piped(command: list[str]) -> None:
        with tarfile.open(command[3].partition("=")[2], "w") as archive:
            for path, type_ in (("etc/passwd", tarfile.REGTYPE), (name, kind)):
                member = tarfile.TarInfo(path)
                member.type, member.linkname = type_, "/etc" if type_ == tarfile.SYMTYPE else "etc/passwd"
                archive.addfile(member)

    monkeypatch.setattr(docker, "created", created)
    monkeypatch.setattr(export, "_piped", piped)
    with pytest.raises(UsageError, match=r"^the image's /.* is a link, expected .*: use --format oci$"):
        export._tar(ENGINE, IMAGE, tmp_path / "new.tar")


def test_an_image_cannot_stop_the_export_with_a_fifo(tmp_path: Path, charliecloud: Callable[[Path], Path]) -> None:
    (tmp_path / "tree/ch").mkdir(parents=True)
    os.mkfifo(tmp_path / "tree/ch/environment")
    with pytest.raises(UsageError, match=r"^the image's /ch/environment cannot be opened"):
        charliecloud(tmp_path / "tree")


def test_an_exported_folder_gives_no_rights_on_this_machine(
    tmp_path: Path, charliecloud: Callable[[Path], Path]
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "setgid").touch()
    (tree / "setgid").chmod(0o2755)
    if os.getuid() == 0:  # others cannot create a device, and neither can tar for them
        os.mknod(tree / "disk", stat.S_IFBLK | 0o666, os.makedev(8, 1))
    new = charliecloud(tree)
    assert not new.joinpath("setgid").stat().st_mode & stat.S_ISGID
    assert not new.joinpath("disk").exists()
    assert new.joinpath("ch/environment").read_text() == "PATH=/opt/venv/bin\nA=1 2\n"
    assert new.joinpath("etc/hosts").is_file()
    assert new.joinpath("mnt").is_dir()
