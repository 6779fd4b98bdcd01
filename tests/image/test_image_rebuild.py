"""Building the default pin's image again: what is rebuilt, and a base whose registry cannot be reached."""

import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests import containers
from tests.containers import works
from tooling.engine import docker
from tooling.image import base, build, recipe
from tooling.pins import parse
from tooling.wheels import fetch

PIN = parse.load().pin()
pytestmark = pytest.mark.timeout(containers.BUILD_TEST_SECONDS)


def layers(reference: str) -> list[str]:
    """The digests of an image's layers, the base first."""
    return list(docker.read_image(reference).layers)


def test_a_second_build_without_changes_builds_nothing(image: str) -> None:
    before = docker.read_image(image)
    built = build.build(PIN)
    assert (built.built, built.tag, built.id) == (False, image, before.id)


@pytest.fixture(scope="module")
def changed_image(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image with a changed entrypoints/: one more line, a strict umask's modes, and the cache of a tool."""
    copy = tmp_path_factory.mktemp("changed") / "entrypoints"
    shutil.copytree(recipe.ENTRYPOINTS, copy)
    errors = copy / "cpu_train_stack" / "cli" / "errors.py"
    errors.write_text(errors.read_text() + "CHANGED = True\n")
    (copy / ".ruff_cache").mkdir(exist_ok=True)
    (copy / ".ruff_cache" / "leftover").write_text("")
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    tag = f"{containers.unique_name()}:changed"
    ground = base.ensure(PIN)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(recipe, "ENTRYPOINTS", copy)
        staged = recipe.stage_locks(PIN, tmp_path_factory.mktemp("locks"))
        argv = recipe.build_argv(PIN, ground, fetch.fetch(PIN), staged, {}, tag)
    try:
        subprocess.run(argv, capture_output=True, check=True, timeout=containers.BUILD_SECONDS)
        yield tag
    finally:
        subprocess.run(["docker", "rmi", "--force", tag], capture_output=True, check=False, timeout=60)


def test_a_change_in_entrypoints_rebuilds_only_the_last_layers(image: str, changed_image: str) -> None:
    before, after = layers(image), layers(changed_image)
    same = [one for one, other in zip(before, after, strict=True) if one == other]
    assert len(before) == 5
    # base, system packages and environment stay, entrypoints/ does not; the last holds the working folder
    assert same[:3] == before[:3]
    assert before[3] != after[3]


def test_the_image_has_the_package_alone_readable_by_every_user(changed_image: str) -> None:
    script = "from cpu_train_stack.cli import errors; print(errors.CHANGED)"
    any_user = ["--user", "12345"]
    assert works(containers.run(changed_image, "python", "-c", script, docker_args=any_user)) == "True\n"
    listed = works(
        containers.run(changed_image, "ls", "-A", f"{recipe.site_packages(PIN)}/cpu_train_stack/cli")
    ).split()
    assert "errors.py" in listed
    assert [name for name in listed if name.startswith(".") or name == "ruff.toml"] == []


@pytest.mark.timeout(60)
def test_a_pull_from_a_registry_that_accepts_and_never_answers_is_given_up(image: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        reference = f"127.0.0.1:{server.getsockname()[1]}/x@sha256:{'0' * 64}"
        with pytest.raises(base.NoRegistryError):
            base.pull(reference, silence_seconds=2)
        server.accept()[0].close()  # the engine did connect


@pytest.mark.timeout(60)
def test_a_pull_from_an_unreachable_registry_is_given_up_at_once(image: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(base.NoRegistryError, match="connection refused"):
        base.pull(f"127.0.0.1:{port}/x@sha256:{'0' * 64}", silence_seconds=3600)
