"""Finds what there is of Docker here: the engine that answers, the client, its plugins. Changes nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from docker.errors import DockerException

from tooling.basis.errors import UsageError
from tooling.engine.client import connect, wants_tls

DEFAULT_ENDPOINT = "unix:///var/run/docker.sock"
ANSWER_SECONDS = 15.0


@dataclass(frozen=True)
class EngineFacts:
    """A running engine's own description. `memory` is in bytes."""

    version: str
    api: str
    root_dir: str
    cgroup_version: int
    storage_driver: str
    cpus: int
    memory: int


@dataclass(frozen=True)
class Findings:
    """Versions are as reported; None is what was not found.

    `chosen_by` names what selected the engine (DOCKER_HOST, DOCKER_TLS_VERIFY, a context); None for the local
    default.
    `problem` is the cause in one line if no engine answers.
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


def version_tuple(text: str | None) -> tuple[int, ...]:
    """`v2.26.1-4`, `26.1.5+dfsg1`, `0.13` as numbers; () for what has none."""
    match = re.search(r"\d+(?:\.\d+)+", text or "")
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def parse_engine(info: Mapping[str, Any], api: str) -> EngineFacts | None:
    """From the engine's /info; None if no engine answered (the client then fills the document with zeros)."""
    if not info.get("ServerVersion"):
        return None
    return EngineFacts(
        version=info["ServerVersion"],
        api=api,
        root_dir=info.get("DockerRootDir", ""),
        cgroup_version=int(info.get("CgroupVersion") or 1),
        storage_driver=info.get("Driver", ""),
        cpus=int(info.get("NCPU") or 0),
        memory=int(info.get("MemTotal") or 0),
    )


def parse_plugins(info: Mapping[str, Any]) -> dict[str, str]:
    """The client's plugins, name to version, from `docker info`."""
    plugins = (info.get("ClientInfo") or {}).get("Plugins") or []
    return {plugin["Name"]: plugin.get("Version", "") for plugin in plugins if not plugin.get("Err")}


def parse_buildkit(inspect: str) -> str | None:
    """The version that `docker buildx inspect` shows; Debian's engine shows `v0.0.0+unknown`."""
    match = re.search(r"^\s*Build[Kk]it(?: version)?:\s*(\S+)", inspect, re.MULTILINE)
    return match[1] if match else None


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str]:
    """Standard output and error of a command that only reads; a command that hangs gives neither."""
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
        document = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _one_line(text: str) -> str:
    return " ".join(text.split())


def find_dockerd(environ: Mapping[str, str] = os.environ) -> str | None:
    """The daemon's path. Searches the system's directories even if the user's PATH omits them."""
    return shutil.which("dockerd", path=f"{environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin")


def find(environ: Mapping[str, str] = os.environ) -> Findings:
    """Asks the client, or without one the engine's socket; each question is bounded by ANSWER_SECONDS."""
    host = environ.get("DOCKER_HOST")
    dockerd = find_dockerd(environ)
    dockerd_version = _run([dockerd, "--version"], environ)[0].strip() if dockerd else None
    mmdebstrap = shutil.which("mmdebstrap", path=environ.get("PATH"))
    if not shutil.which("docker", path=environ.get("PATH")):
        engine, problem = _ask_engine(host or DEFAULT_ENDPOINT, environ)
        return Findings(
            endpoint=host or DEFAULT_ENDPOINT,
            chosen_by="DOCKER_HOST" if host else None,
            engine=engine,
            problem=problem,
            dockerd=dockerd_version,
            mmdebstrap=mmdebstrap,
        )
    out, complaint = _run(["docker", "info", "--format", "{{json .}}"], environ)
    info = _json(out)
    client = info.get("ClientInfo") or {}
    context = client.get("Context") or "default"
    chosen_by = "DOCKER_HOST" if host else f"the context {context!r}" if context != "default" else None
    if not chosen_by and wants_tls(environ):
        chosen_by = "DOCKER_TLS_VERIFY"
    endpoint = host or DEFAULT_ENDPOINT
    if chosen_by and not host:
        inspect = ["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
        endpoint = _run(inspect, environ)[0].strip() or context
    api = _run(["docker", "version", "--format", "{{.Server.APIVersion}}"], environ)[0].strip()
    engine = parse_engine(info, api)
    plugins = parse_plugins(info)
    if engine and "buildx" in plugins:
        # The engine's own builder carries the context's name; another builder may be the current one.
        buildkit = parse_buildkit(_run(["docker", "buildx", "inspect", context], environ)[0])
    else:
        buildkit = None
    return Findings(
        endpoint=endpoint,
        chosen_by=chosen_by,
        engine=engine,
        problem=None if engine else _one_line(complaint) or "no answer",
        buildkit=buildkit,
        client=client.get("Version") or _run(["docker", "--version"], environ)[0].strip() or "unknown",
        compose=plugins.get("compose"),
        buildx=plugins.get("buildx"),
        dockerd=dockerd_version,
        mmdebstrap=mmdebstrap,
    )


def _ask_engine(endpoint: str, environ: Mapping[str, str]) -> tuple[EngineFacts | None, str | None]:
    try:
        client = connect(endpoint, timeout=int(ANSWER_SECONDS), environ=environ)
        with_api = client.version().get("ApiVersion", "")
        return parse_engine(client.info(), with_api), None
    except (DockerException, UsageError, OSError) as error:
        return None, _one_line(str(error))
