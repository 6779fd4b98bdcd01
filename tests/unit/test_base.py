"""The base image: present, or pulled, or made. A stand-in for `docker` on PATH says what the engine would."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.tiny import make_pin, silent
from tooling import base, engine
from tooling.errors import USAGE_EXIT_CODE, UsageError
from tooling.pin import DEBIAN_RELEASES, Pin

BOOTSTRAPPED = "cpu-train-stack-base:bookworm"
PIN = make_pin({})

# An image is present if $IMAGES has a file that is named after it; every call is written down.
DOCKER = """#!/bin/sh
echo "$*" >> "$IMAGES/../calls"
for reference; do :; done
file="$IMAGES/$(echo "$reference" | tr / _)"
case $1 in
    image) [ -f "$file" ] && echo "sha256:id-of-$reference" ;;
    pull) {pull} ;;
    import) {imported} ;;
esac
"""


class Programs:
    """Puts stand-ins on PATH and tells how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images = folder / "images"
        self.images.mkdir()

    def put(self, name: str, script: str) -> None:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)

    def docker(self, pull: str = "exit 1", imported: str = 'touch "$file"') -> None:
        self.put("docker", DOCKER.format(pull=pull, imported=imported))

    def called(self) -> list[str]:
        calls = self.folder / "calls"
        return [line.split()[0] for line in calls.read_text().splitlines()] if calls.exists() else []


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    made = Programs(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("IMAGES", str(made.images))
    monkeypatch.setattr(base, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(engine, "ensure_mmdebstrap", lambda say: say("mmdebstrap is there"))
    return made


def test_an_official_base_that_is_present_is_taken_before_anything_else(programs: Programs) -> None:
    programs.docker()
    (programs.images / PIN.base).touch()
    (programs.images / BOOTSTRAPPED).touch()
    assert base.ensure(PIN, silent) == base.Base(PIN.base, "sha256:" + "0" * 64, "registry")
    assert set(programs.called()) == {"image"}


def test_a_base_that_was_made_before_is_taken_without_asking_a_registry(programs: Programs) -> None:
    programs.docker()
    (programs.images / BOOTSTRAPPED).touch()
    assert base.ensure(PIN, silent) == base.Base(BOOTSTRAPPED, f"sha256:id-of-{BOOTSTRAPPED}", "mmdebstrap")
    assert set(programs.called()) == {"image"}


def test_a_base_that_is_not_there_is_pulled_by_its_digest(programs: Programs) -> None:
    programs.docker(pull='echo Pulling; touch "$file"')
    assert base.ensure(PIN, silent) == base.Base(PIN.base, "sha256:" + "0" * 64, "registry")
    assert programs.called() == ["image", "image", "pull"]


def test_where_no_registry_answers_the_base_is_made_and_each_step_is_said(programs: Programs) -> None:
    programs.docker()
    programs.put(
        "mmdebstrap", '#!/bin/sh\nfor archive; do :; done\necho "$*" >> "$IMAGES/../made"\n: > "$archive"\n'
    )
    said: list[str] = []
    assert base.ensure(PIN, said.append) == base.Base(BOOTSTRAPPED, f"sha256:id-of-{BOOTSTRAPPED}", "mmdebstrap")
    assert "bookworm" in (programs.folder / "made").read_text().split()
    assert said == [
        "base image debian:bookworm-slim: asking its registry (at most 20 s of silence)",
        "no registry answers: making Debian 12 (bookworm) with mmdebstrap",
        "mmdebstrap is there",
    ]
    assert list((programs.folder / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("release", "has_hook", "expected"),
    [(11, True, []), (12, False, []), (12, True, ["--hook-dir={hook}", "--include=usr-is-merged"])],
    ids=["bullseye", "old-mmdebstrap", "bookworm"],
)
def test_a_base_is_made_without_usrmerge_and_its_perl_where_debian_allows_it(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, release: int, has_hook: bool, expected: list[str]
) -> None:
    hook = programs.folder / "hook"
    if has_hook:
        hook.mkdir()
    monkeypatch.setattr(base, "MERGED_USR_HOOK", hook)
    programs.docker()
    programs.put(
        "mmdebstrap", '#!/bin/sh\nfor archive; do :; done\necho "$*" > "$IMAGES/../made"\n: > "$archive"\n'
    )
    base.bootstrap(Pin(**{**vars(PIN), "debian": DEBIAN_RELEASES[release]}), BOOTSTRAPPED)
    words = (programs.folder / "made").read_text().split()
    assert words[3:-2] == [word.format(hook=hook) for word in expected]


@pytest.mark.parametrize(
    ("mmdebstrap", "imported", "expected"),
    [
        pytest.param(
            "echo W: one >&2; echo E: no mirror >&2; exit 1",
            ":",
            "mmdebstrap bookworm failed: E: no mirror",
            id="made",
        ),
        pytest.param("exit 1", ":", "mmdebstrap bookworm failed: no message", id="made-silent"),
        pytest.param(
            ':>"$archive"',
            "echo no space left >&2; exit 1",
            "docker import of .* failed: no space left",
            id="import",
        ),
        pytest.param("exec sleep 60", ":", "mmdebstrap bookworm did not end within 1 s", id="hangs"),
    ],
)
def test_a_base_that_cannot_be_made_is_one_line(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, mmdebstrap: str, imported: str, expected: str
) -> None:
    monkeypatch.setattr(base, "BOOTSTRAP_SECONDS", 1.0)
    programs.docker(imported=imported)
    programs.put("mmdebstrap", f"#!/bin/sh\nfor archive; do :; done\n{mmdebstrap}\n")
    with pytest.raises(UsageError, match=expected) as caught:
        base.ensure(PIN, silent)
    assert "\n" not in str(caught.value)
    assert caught.value.code == USAGE_EXIT_CODE
    assert list((programs.folder / "cache").iterdir()) == []


@pytest.mark.timeout(30)
def test_a_pull_from_a_registry_that_never_answers_is_given_up(programs: Programs) -> None:
    programs.docker(pull='echo $$ > "$IMAGES/../pid"; exec sleep 60')
    assert not base.pull("silent/image", silence_seconds=1)
    pid = (programs.folder / "pid").read_text().strip()
    assert not Path("/proc", pid).exists(), "docker pull goes on in the background"


@pytest.mark.timeout(30)
def test_a_pull_whose_layers_come_slowly_is_not_given_up_once_the_registry_has_answered(
    programs: Programs,
) -> None:
    programs.docker(pull="echo Pulling from library/debian; sleep 3; echo Pull complete")
    assert base.pull("slow/image", silence_seconds=1)


@pytest.mark.timeout(30)
def test_a_pull_that_stalls_after_the_registry_has_answered_is_given_up(programs: Programs) -> None:
    programs.docker(pull="echo Pulling from library/debian; exec sleep 60")
    assert not base.pull("stalled/image", silence_seconds=1, stall_seconds=1)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(("script", "expected"), [("echo Pull complete", True), ("echo no; exit 1", False)])
def test_a_pull_ends_with_the_engines_command_not_with_the_silence_after_it(
    programs: Programs, script: str, expected: bool
) -> None:
    programs.docker(pull=script)
    assert base.pull("some/image", silence_seconds=3600) is expected
