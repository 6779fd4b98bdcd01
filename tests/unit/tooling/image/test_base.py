"""The base image: present, pulled or built. A stand-in for `docker` on PATH answers as the engine would."""

from pathlib import Path

import pytest

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tests.unit.tooling.tiny import make_pin
from tooling.engine import api
from tooling.image import base
from tooling.pins.pin import DEBIAN_RELEASES, Pin

BOOTSTRAPPED = "cpu-train-stack-base:bookworm"
PIN = make_pin({})

# An image is present if $IMAGES has a file that is named after it; every call is written down.
DOCKER = """#!/bin/sh
echo "$*" >> "$IMAGES/../calls"
for reference; do :; done
file="$IMAGES/$(echo "$reference" | tr / _)"
case $1 in
    image) [ -f "$file" ] && sed "s|ID|sha256:id-of-$reference|" "$IMAGES/../inspect.json" ;;
    pull) {pull} ;;
    import) {imported} ;;
esac
"""


ENGINE = "Error response from daemon: "
HUB = 'Get "https://registry-1.docker.io/v2/": '
NO_REGISTRY = f"{ENGINE}{HUB}dial tcp: lookup registry-1.docker.io on 10.0.0.1:53: no such host"


class Programs:
    """Puts stand-ins on PATH and records their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images = folder / "images"
        self.images.mkdir()
        (folder / "inspect.json").write_text('{"Id": "ID", "Size": 1, "Config": {}, "RootFS": {"Layers": []}}')

    def put(self, name: str, script: str) -> None:
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)

    def docker(self, pull: str = f"echo '{NO_REGISTRY}' >&2; exit 1", imported: str = 'touch "$file"') -> None:
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
    monkeypatch.setattr(api, "ensure_mmdebstrap", lambda: say("installing mmdebstrap"))
    return made


def test_an_official_base_in_the_engine_is_used_first(programs: Programs) -> None:
    programs.docker()
    (programs.images / PIN.base).touch()
    (programs.images / BOOTSTRAPPED).touch()
    assert base.ensure(PIN) == base.Base(PIN.base, "sha256:" + "0" * 64, "registry")
    assert set(programs.called()) == {"image"}


def test_a_base_that_was_built_before_is_used_without_a_registry(programs: Programs) -> None:
    programs.docker()
    (programs.images / BOOTSTRAPPED).touch()
    assert base.ensure(PIN) == base.Base(BOOTSTRAPPED, f"sha256:id-of-{BOOTSTRAPPED}", "mmdebstrap")
    assert set(programs.called()) == {"image"}


def test_a_missing_base_is_pulled_by_its_digest(programs: Programs) -> None:
    programs.docker(pull='echo Pulling; touch "$file"')
    assert base.ensure(PIN) == base.Base(PIN.base, "sha256:" + "0" * 64, "registry")
    assert programs.called() == ["image", "image", "pull"]


def test_without_a_registry_the_base_is_built_with_a_line_for_each_step(
    programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.docker()
    programs.put(
        "mmdebstrap", '#!/bin/sh\nfor archive; do :; done\necho "$*" >> "$IMAGES/../made"\n: > "$archive"\n'
    )
    assert base.ensure(PIN) == base.Base(BOOTSTRAPPED, f"sha256:id-of-{BOOTSTRAPPED}", "mmdebstrap")
    assert "bookworm" in (programs.folder / "made").read_text().split()
    assert capsys.readouterr().err.splitlines() == [
        "base image debian:bookworm-slim: waiting for its registry (at most 20 s of silence)",
        f"no registry answers ({NO_REGISTRY}): building Debian 12 (bookworm) with mmdebstrap",
        "installing mmdebstrap",
    ]
    assert list((programs.folder / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("release", "has_hook", "expected"),
    [(11, True, []), (12, False, []), (12, True, ["--hook-dir={hook}", "--include=usr-is-merged"])],
    ids=["bullseye", "old-mmdebstrap", "bookworm"],
)
def test_a_base_is_built_without_usrmerge_and_perl_if_debian_allows_it(
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
        pytest.param("exec sleep 60", ":", "mmdebstrap bookworm did not finish within 0.3 s", id="hangs"),
    ],
)
def test_a_base_that_cannot_be_built_is_one_line(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, mmdebstrap: str, imported: str, expected: str
) -> None:
    monkeypatch.setattr(base, "BOOTSTRAP_SECONDS", 0.3)
    programs.docker(imported=imported)
    programs.put("mmdebstrap", f"#!/bin/sh\nfor archive; do :; done\n{mmdebstrap}\n")
    with pytest.raises(UsageError, match=expected) as caught:
        base.ensure(PIN)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == contract.USAGE_EXIT_CODE
    assert list((programs.folder / "cache").iterdir()) == []


@pytest.mark.timeout(30)
def test_a_pull_from_a_silent_registry_is_stopped(programs: Programs) -> None:
    programs.docker(pull='echo $$ > "$IMAGES/../pid"; exec sleep 60')
    with pytest.raises(base.NoRegistryError, match=r"no response for 0\.3 s"):
        base.pull("silent/image", silence_seconds=0.3)
    pid = (programs.folder / "pid").read_text().strip()
    assert not Path("/proc", pid).exists(), "docker pull still runs"


@pytest.mark.timeout(30)
def test_a_slow_pull_is_not_stopped_once_the_registry_has_answered(
    programs: Programs,
) -> None:
    programs.docker(pull="echo Pulling from library/debian; sleep 1.4; echo Pull complete")
    base.pull("slow/image", silence_seconds=0.7)


@pytest.mark.timeout(30)
def test_a_pull_that_stalls_after_the_registry_has_answered_is_an_error(programs: Programs) -> None:
    programs.docker(pull="echo Pulling from library/debian; exec sleep 60")
    with pytest.raises(UsageError, match=r"no progress for 0\.5 s: retry"):
        base.pull("stalled/image", silence_seconds=5, stall_seconds=0.5)


@pytest.mark.timeout(30)
def test_a_pull_ends_when_the_engines_command_ends(programs: Programs) -> None:
    programs.docker(pull="exit 0")
    base.pull("some/image", silence_seconds=3600)


@pytest.mark.parametrize(
    "said",
    [
        "dial tcp: lookup registry-1.docker.io on 10.0.0.1:53: no such host",
        "dial tcp 127.0.0.1:443: connect: connection refused",
        "dial tcp [2600::1]:443: connect: network is unreachable",
        "net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)",
        "proxyconnect tcp: dial tcp 10.0.0.1:3128: i/o timeout",
        "net/http: TLS handshake timeout",
        "EOF",
        "Forbidden",
    ],
)
def test_an_unreachable_registry_counts_as_no_registry(programs: Programs, said: str) -> None:
    programs.docker(pull=f"echo '{ENGINE}{HUB}{said}' >&2; exit 1")
    with pytest.raises(base.NoRegistryError) as caught:
        base.pull("some/image", silence_seconds=3600)
    assert str(caught.value) == f"{ENGINE}{HUB}{said}"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("toomanyrequests: You have reached your pull rate limit.", "wait, or run docker login"),
        ("write /var/lib/docker/tmp/GetImageBlob1: no space left on device", "Docker's disk is full"),
        (f"{HUB}unauthorized: incorrect username or password", "rejected Docker's login"),
        ("pull access denied for some/image, repository does not exist", "denied access"),
        (f"{HUB}tls: failed to verify certificate: x509: unknown authority", "does not trust the certificate"),
        ("manifest for some/image not found: manifest unknown", "fix the cause and retry"),
    ],
    ids=["rate limit", "disk", "login", "access", "certificate", "anything else"],
)
def test_a_refused_pull_is_an_error_with_the_engines_message(programs: Programs, said: str, expected: str) -> None:
    programs.docker(pull=f"echo '{ENGINE}{said}' >&2; exit 1")
    with pytest.raises(UsageError) as caught:
        base.ensure(PIN)
    message = str(caught.value)
    assert message.startswith(f"docker pull {PIN.base} failed: {ENGINE}{said}: ")
    assert expected in message
    assert "\n" not in message


def test_a_connection_that_breaks_after_the_registry_has_answered_is_an_error(programs: Programs) -> None:
    programs.docker(pull=f"echo Pulling; echo '{ENGINE}{HUB}read: connection reset by peer' >&2; exit 1")
    with pytest.raises(UsageError, match="connection reset by peer"):
        base.pull("some/image", silence_seconds=3600)
