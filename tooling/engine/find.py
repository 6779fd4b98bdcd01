"""Finds Docker on this machine: the engine, the client and its plugins; and the facts of the machine that matter.

Changes nothing.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import parse_json
from tooling.engine import failures
from tooling.engine.client import connect, wants_tls

DEFAULT_ENDPOINT = "unix:///var/run/docker.sock"
ANSWER_SECONDS = 15.0
ROOT_DIRECTORY = Path("/")


@dataclass(frozen=True)
class EngineFacts:
    """A running engine as `docker info` describes it."""

    version: str
    root_dir: str
    cgroup_version: int
    storage_driver: str
    cpus: int


@dataclass(frozen=True)
class Findings:
    """Versions are as reported. None: not found.

    `chosen_by`: the setting that selects the engine (DOCKER_HOST, DOCKER_TLS_VERIFY, a context). None for the
    local default. `problem`: one line with the cause if no engine responds.
    """

    endpoint: str = DEFAULT_ENDPOINT
    chosen_by: str | None = None
    engine: EngineFacts | None = None
    problem: str | None = None
    buildkit: str | None = None
    client: str | None = None
    compose: str | None = None
    buildx: str | None = None
    dockerd: str | None = None
    mmdebstrap: str | None = None


@dataclass(frozen=True)
class EngineHost:
    """The facts of this machine that decide whether ./inv may install and start Docker.

    `os_id` and `version` are os-release's ID and the major number of VERSION_ID: None for Debian testing and
    unstable.
    """

    os_id: str
    version: int | None
    name: str
    root: bool
    systemd: bool
    docker_ce: bool = False
    ca_certificates: bool = True


def find(environ: Mapping[str, str] = os.environ) -> Findings:
    """Query Docker through its client or, without a client, through the engine's socket.

    Each query takes at most ANSWER_SECONDS.
    """
    host = environ.get("DOCKER_HOST")
    dockerd = find_dockerd(environ)
    found = Findings(
        endpoint=host or DEFAULT_ENDPOINT,
        chosen_by="DOCKER_HOST" if host else None,
        dockerd=_run([dockerd, "--version"], environ)[0].strip() if dockerd else None,
        mmdebstrap=shutil.which("mmdebstrap", path=environ.get("PATH")),
    )
    if not shutil.which("docker", path=environ.get("PATH")):
        engine, problem = _ask_engine(host or DEFAULT_ENDPOINT, environ)
        return replace(found, engine=engine, problem=problem)
    output, errors = _run(["docker", "info", "--format", "{{json .}}"], environ)
    info = _json(output)
    client = info.get("ClientInfo") or {}
    context, plugins = client.get("Context"), parse_plugins(info)
    if not info:  # the context does not exist, or the engine hangs: ask the client, which needs no engine
        context, plugins = _run(["docker", "context", "show"], environ)[0].strip(), _ask_plugins(environ)
    context = context or "default"
    if not host and (context != "default" or wants_tls(environ)):
        inspect = ["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
        found = replace(
            found,
            endpoint=_run(inspect, environ)[0].strip() or context,
            chosen_by=f"the context {context!r}" if context != "default" else "DOCKER_TLS_VERIFY",
        )
    engine = parse_engine(info)
    buildkit = None
    if engine and "buildx" in plugins:
        # The engine's builder has the name of the context. Another builder may be the current one.
        buildkit = parse_buildkit(_run(["docker", "buildx", "inspect", context], environ)[0])
    return replace(
        found,
        engine=engine,
        problem=None if engine else _one_line(errors) or "no answer",
        buildkit=buildkit,
        client=client.get("Version") or _run(["docker", "--version"], environ)[0].strip() or "unknown",
        compose=plugins.get("compose"),
        buildx=plugins.get("buildx"),
    )


def find_dockerd(environ: Mapping[str, str] = os.environ) -> str | None:
    """The path of dockerd. Searches the system's directories even if the user's PATH omits them."""
    return shutil.which("dockerd", path=f"{environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin")


def _ask_engine(endpoint: str, environ: Mapping[str, str]) -> tuple[EngineFacts | None, str | None]:
    try:
        client = connect(endpoint, timeout=int(ANSWER_SECONDS), environ=environ)
        return parse_engine(client.info()), None
    except (failures.DockerException, UsageError, OSError) as error:
        return None, _one_line(str(error))


def parse_engine(info: Mapping[str, Any]) -> EngineFacts | None:
    """The facts in the engine's /info. None if no engine responded: the client then prints zeros."""
    if not info.get("ServerVersion"):
        return None
    return EngineFacts(
        version=info["ServerVersion"],
        root_dir=info.get("DockerRootDir", ""),
        cgroup_version=int(info.get("CgroupVersion") or 1),
        storage_driver=info.get("Driver", ""),
        cpus=int(info.get("NCPU") or 0),
    )


def parse_plugins(info: Mapping[str, Any]) -> dict[str, str]:
    """The version of each of the client's plugins, by name, from `docker info`."""
    plugins = (info.get("ClientInfo") or {}).get("Plugins") or []
    return {plugin["Name"]: plugin.get("Version", "") for plugin in plugins if not plugin.get("Err")}


def _ask_plugins(environ: Mapping[str, str]) -> dict[str, str]:
    """The plugins and what they print about their versions."""
    answers = {name: _run(["docker", name, "version"], environ)[0].strip() for name in ("compose", "buildx")}
    return {name: answer for name, answer in answers.items() if version_tuple(answer)}


def parse_buildkit(inspect: str) -> str | None:
    """The version that `docker buildx inspect` shows; Debian's engine shows `v0.0.0+unknown`."""
    match = re.search(r"^\s*Build[Kk]it(?: version)?:\s*(\S+)", inspect, re.MULTILINE)
    return match[1] if match else None


def version_tuple(text: str | None) -> tuple[int, ...]:
    """`v2.26.1-4`, `26.1.5+dfsg1`, `0.13` as numbers; () for a text without a version."""
    match = re.search(r"\d+(?:\.\d+)+", text or "")
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str]:
    """Standard output and error of a command that changes nothing. A command that hangs has no output."""
    try:
        done = subprocess.run(
            argv,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    return done.stdout, done.stderr


def _json(text: str) -> dict[str, Any]:
    try:
        document = parse_json(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def read_host() -> EngineHost:
    """The facts of this machine."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:  # not Linux
        release = {"ID": os.uname().sysname.lower(), "PRETTY_NAME": os.uname().sysname}
    return host_from(release, root=os.geteuid() == 0)


def host_from(release: Mapping[str, str], *, root: bool, root_directory: Path = ROOT_DIRECTORY) -> EngineHost:
    """The host of an os-release file and of a few paths under `root_directory`."""
    major = release.get("VERSION_ID", "").partition(".")[0]
    return EngineHost(
        os_id=release.get("ID", "unknown"),
        version=int(major) if major.isdigit() else None,
        name=release.get("PRETTY_NAME") or release.get("ID", "an unknown system"),
        root=root,
        systemd=(root_directory / "run/systemd/system").is_dir(),  # the test of sd_booted(3)
        docker_ce=(root_directory / "var/lib/dpkg/info/docker-ce.list").is_file(),
        ca_certificates=(root_directory / "etc/ssl/certs/ca-certificates.crt").is_file(),
    )
