"""Which changes rebuild an image, and the command that builds it."""

import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tooling.basis.identity import IDENTITY
from tooling.basis.paths import ROOT
from tooling.checks import sanitize
from tooling.engine import docker
from tooling.image import base, build, recipe
from tooling.image.base import Base
from tooling.image.build import Image
from tooling.pins import added, parse
from tooling.pins.pin import Ccl, Pin
from tooling.wheels import fetch, locks

PIN = parse.load().pin()
GROUND = Base("some-base:tag", "sha256:" + "1" * 64, "mmdebstrap")
ERRORS = "entrypoints/cpu_train_stack/cli/errors.py"


@pytest.fixture(autouse=True)
def default_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of an engine on this machine, as docker prints it."""
    monkeypatch.setattr(recipe, "_context", lambda: "default")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the inputs of an image (of entrypoints/ one room), which a test may change."""
    for folder in ("images", "entrypoints/cpu_train_stack/cli", "bindings", "kernels"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(recipe, "ROOT", tmp_path)
    monkeypatch.setattr(recipe, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(recipe, "ENTRYPOINTS", tmp_path / "entrypoints")
    monkeypatch.setattr(recipe, "BINDINGS", tmp_path / "bindings")
    monkeypatch.setattr(recipe, "KERNELS", tmp_path / "kernels")
    monkeypatch.setattr(locks, "LOCKS", tmp_path / "images" / "locks")
    return tmp_path


def append(path: str) -> Callable[[Path], object]:
    """A change of one file. Creates the file if it is missing."""

    def change(checkout: Path) -> None:
        file = checkout / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((file.read_text() if file.exists() else "") + "# changed\n")

    return change


def flip_mode(path: str) -> Callable[[Path], object]:
    return lambda checkout: (checkout / path).chmod((checkout / path).stat().st_mode ^ 0o111)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(append(ERRORS), id="entrypoints"),
        pytest.param(append("entrypoints/cpu_train_stack/train/new.py"), id="new-module"),
        pytest.param(lambda checkout: (checkout / ERRORS).unlink(), id="module-removed"),
        pytest.param(append("entrypoints/.dockerignore"), id="dockerignore"),
        pytest.param(append("images/Dockerfile"), id="dockerfile"),
        pytest.param(append("images/entrypoint"), id="entrypoint"),
        pytest.param(append("images/scripts/trim.py"), id="script"),
        pytest.param(flip_mode("images/scripts/install-system"), id="mode-of-a-script"),
        pytest.param(append("images/locks/2.13.txt"), id="lock"),
        pytest.param(append("images/locks/2.13-build.txt"), id="build-lock"),
        pytest.param(append("bindings/src/module.cpp"), id="bindings"),
        pytest.param(append("kernels/dropout.cpp"), id="kernels"),
        pytest.param(append("bindings/oneccl_bindings_for_pytorch/_shm.py"), id="package-of-the-bindings"),
        pytest.param(
            lambda checkout: (checkout / "pyproject.toml").write_text('[project]\nversion = "9.9"\n'), id="version"
        ),
    ],
)
def test_a_change_of_an_input_rebuilds_the_image(checkout: Path, change: Callable[[Path], object]) -> None:
    before = recipe.inputs_sha256(PIN, GROUND)
    change(checkout)
    assert recipe.inputs_sha256(PIN, GROUND) != before


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(append("README.md"), id="readme"),
        pytest.param(append("tests/unit/tooling/image/test_build.py"), id="tests"),
        pytest.param(append("tooling/image/build.py"), id="tooling"),
        pytest.param(append("bindings/tests/collectives.py"), id="checks-of-the-bindings"),
        pytest.param(append("bindings/README.md"), id="readme-of-the-bindings"),
        pytest.param(append("images/versions.toml"), id="another-row"),
        pytest.param(append("images/status.json"), id="proofs"),
        pytest.param(append("images/locks/2.8.txt"), id="another-pins-lock"),
        pytest.param(append("entrypoints/__pycache__/errors.cpython-311.pyc"), id="bytecode"),
        pytest.param(append("entrypoints/cpu_train_stack/train/__pycache__/a.pyc"), id="bytecode-below"),
        pytest.param(append("entrypoints/.ruff_cache/0.1/1"), id="cache-of-a-tool"),
        pytest.param(lambda checkout: (checkout / ERRORS).touch(), id="time-stamp"),
        pytest.param(lambda checkout: (checkout / ERRORS).chmod(0o600), id="umask"),
        pytest.param(lambda checkout: (checkout / "images/scripts/settled").chmod(0o700), id="umask-of-a-script"),
    ],
)
def test_a_change_of_anything_else_does_not_rebuild_the_image(
    checkout: Path, change: Callable[[Path], object]
) -> None:
    before = recipe.inputs_sha256(PIN, GROUND)
    change(checkout)
    assert recipe.inputs_sha256(PIN, GROUND) == before


def test_another_base_or_another_package_is_another_image(checkout: Path) -> None:
    other_base = Base(GROUND.reference, "sha256:" + "2" * 64, GROUND.source)
    other_pin = replace(PIN, tcmalloc_package="libtcmalloc-other")
    sums = {recipe.inputs_sha256(pin, ground) for pin in (PIN, other_pin) for ground in (GROUND, other_base)}
    assert len(sums) == 4


def words_after(argv: list[str], option: str) -> list[str]:
    return [argv[i + 1] for i, word in enumerate(argv) if word == option]


def test_the_build_command_has_every_input_and_nothing_from_the_hosts_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:s3cret@index.invalid/simple")
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:s3cret@proxy.invalid")
    made = recipe.labels(PIN, GROUND, {"torch": "2.13.0+cpu"}, "sum")
    argv = recipe.build_argv(PIN, GROUND, tmp_path / "wheels", tmp_path / "locks", made, PIN.image)
    assert argv[:3] == ["docker", "buildx", "build"]
    assert argv[-1] == str(ROOT / "images")
    assert words_after(argv, "--tag") == [f"cpu-train-stack:2.13-{IDENTITY}"]
    assert words_after(argv, "--build-context") == [
        f"wheels={tmp_path / 'wheels'}",
        f"locks={tmp_path / 'locks' / 'row'}",
        f"entrypoints={ROOT / 'entrypoints'}",
        f"bindings={ROOT / 'bindings'}",
        f"kernels={ROOT / 'kernels'}",
    ]
    assert dict(word.split("=", 1) for word in words_after(argv, "--build-arg")) == {
        "BASE": "some-base:tag",
        "TCMALLOC_PACKAGE": "libtcmalloc-minimal4",
        "CCL": "bindings",
        "PYTHON": "3.11",
        "PIN": "2.13",
        "ADVISORIES": "[]",
    }
    assert dict(word.split("=", 1) for word in words_after(argv, "--label")) == made
    assert "s3cret" not in " ".join(argv)


def test_an_option_names_another_stage_than_the_rows(tmp_path: Path) -> None:
    """buildx uses the last --target. `./inv dev sanitize` builds the stage that has the compiler."""
    argv = recipe.build_argv(PIN, GROUND, tmp_path, tmp_path, {}, PIN.image, [f"--target={sanitize.STAGE}"])
    assert argv.index(f"--target={sanitize.STAGE}") > argv.index("--target")


def test_every_build_argument_is_declared_in_the_dockerfile(tmp_path: Path) -> None:
    declared = {
        line.split()[1].partition("=")[0]
        for line in (ROOT / "images/Dockerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith("ARG ")
    }
    argv = recipe.build_argv(PIN, GROUND, tmp_path, tmp_path, {}, PIN.image)
    assert {word.split("=")[0] for word in words_after(argv, "--build-arg")} == declared


def test_a_second_build_of_a_pin_waits_for_the_first_and_finds_its_image(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both would stage the locks in the same folder and write the same log."""
    engine: dict[str, docker.LocalImage] = {}
    together, most = 0, 0

    def buildx(pin: Pin, *_: object) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        time.sleep(0.5)
        labels = {recipe.INPUTS_LABEL: recipe.inputs_sha256(pin, GROUND)}
        engine[pin.image] = docker.LocalImage("sha256:1", 1, labels, (), {})
        together -= 1

    monkeypatch.setattr(build, "CACHE", checkout / ".cache")
    monkeypatch.setattr(build, "_buildx", buildx)
    monkeypatch.setattr(docker, "find_image", engine.get)
    monkeypatch.setattr(build, "take_shared_tag", lambda _pin: None)
    monkeypatch.setattr(base, "ensure", lambda *_: GROUND)
    monkeypatch.setattr(fetch, "fetch", lambda *_: checkout)
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda _: build.build(PIN), range(2)))
    assert most == 1
    assert sorted(image.built for image in made) == [False, True]
    assert "waiting for another ./inv that is building pin 2.13" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    "configuration",
    [
        {"Entrypoint": ["other"]},
        {"Healthcheck": {"Test": ["CMD-SHELL", "id"]}},
        {"Volumes": {"/output": {}}},
        {"StopSignal": "SIGKILL"},
        {"ExposedPorts": {"80/tcp": {}}},
    ],
    ids=lambda configuration: next(iter(configuration)),
)
def test_an_image_that_another_program_put_under_the_tag_is_not_up_to_date(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, configuration: dict[str, object]
) -> None:
    """Everybody can compute the label of the inputs."""
    labels = {recipe.INPUTS_LABEL: recipe.inputs_sha256(PIN, GROUND)}
    ours = docker.LocalImage("sha256:a", 1, labels, (), {"Entrypoint": ["ours"], "Volumes": None})
    foreign = replace(ours, id="sha256:b", configuration={**ours.configuration, **configuration})
    engine = {PIN.image: foreign}
    monkeypatch.setattr(build, "CACHE", checkout / ".cache")
    monkeypatch.setattr(build, "_buildx", lambda *_: engine.update({PIN.image: ours}))
    monkeypatch.setattr(build, "_remove_untagged", lambda _id: None)
    monkeypatch.setattr(docker, "find_image", engine.get)
    monkeypatch.setattr(build, "take_shared_tag", lambda _pin: None)
    monkeypatch.setattr(base, "ensure", lambda *_: GROUND)
    monkeypatch.setattr(fetch, "fetch", lambda *_: checkout)
    assert [build.build(PIN).id for _ in range(2)] == [ours.id] * 2
    engine[PIN.image] = foreign
    assert build.build(PIN).built


def test_the_wheels_are_deleted_after_builds_that_add_packages_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    started = threading.Event()

    def find_or_build(pin: Pin, *_: object) -> Image:
        started.set()
        time.sleep(0.5 if pin.added else 0)
        events.append("built")
        return Image(pin.image, "sha256:1", 1, built=True, seconds=0.0)

    monkeypatch.setattr(build, "CACHE", tmp_path)
    monkeypatch.setattr(build, "_find_or_build", find_or_build)
    monkeypatch.setattr(build, "take_shared_tag", lambda _pin: None)
    monkeypatch.setattr(fetch, "remove", lambda _pin: events.append("removed"))
    with ThreadPoolExecutor() as pool:
        with_packages = pool.submit(build.build, PIN.with_added(added.parse(["trl==1.16.0"])))
        assert started.wait(10)
        build._run(PIN, prune=True)
        with_packages.result()
    assert events == ["built", "built", "removed"]


@pytest.mark.parametrize("text", [b"gcc: \xe2\x80", b"error"], ids=["not UTF-8", "text"])
def test_the_end_of_a_failed_builds_log_is_shown(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "CACHE", tmp_path)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    (tmp_path / "text").write_bytes(text)
    with pytest.raises(UsageError, match="building it failed: see the lines above"):
        build.buildx(["sh", "-c", f"cat {tmp_path}/text; exit 1"], "it", "2.13")
    assert text.decode(errors="replace") in capsys.readouterr().err


def test_the_dockerfile_has_a_stage_for_each_source_of_the_ccl_backend() -> None:
    recipe = (ROOT / "images" / "Dockerfile").read_text(encoding="utf-8")
    assert {line.split()[-1] for line in recipe.splitlines() if " AS backend-" in line} == {
        f"backend-{ccl}" for ccl in Ccl
    }


def test_only_apt_has_the_network_while_an_image_is_built() -> None:
    text = (ROOT / "images/Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    online = [line for line in text.splitlines() if line.startswith("RUN ") and "--network=none" not in line]
    scripts = {name for line in online for name in re.findall(r"/run/scripts/([\w-]+)", line)}
    assert {"install-system", "install-compiler"} <= scripts
    for line in online:
        assert re.fullmatch(r'RUN --mount=\S+ +(/run/scripts/[\w-]+ *)+("\S+")?', line)
    for name in scripts:
        script = (ROOT / "images/scripts" / name).read_text(encoding="utf-8")
        assert not re.search(r"\b(pip3? install|curl|wget|git|make|unauthenticated)\b", script), name
