"""How this rank was started: what its first process found out, for the first line of its records."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cpu_train_stack import contract
from cpu_train_stack.cli import packages
from cpu_train_stack.machine.facts import Topology
from cpu_train_stack.plan.planner import RankPlan
from cpu_train_stack.records.record import Start

PACKAGES = ("torch", "transformers", "accelerate", "peft", "datasets", packages.IPEX)
# torchrun's agent keeps one temporary folder over all restarts. This variable names a file in it.
_AGENT_FILE = "TORCHELASTIC_ERROR_FILE"
_AGENT_FOLDER = re.compile(r"(.+)/attempt_\d+/")
# A flag or a key whose value is not recorded.
_SECRET = re.compile(
    r"token$|secret|passw|passphrase|passcode|credential|bearer|authorization|cookie|connection[_-]?string"
    r"|(^|[_-])(auth|oauth|jwt|otp|pass|pat|pw|pwd|sas)$"
    r"|(api|access|private|client|license|wandb|comet|account|signing|encryption|ssh)[_-]?key",
    re.IGNORECASE,
)
# In a header that is one argument.
_HEADER = re.compile(r"((?:authorization\s*:|cookie\s*:|\bbearer\s)\s*)\S.*", re.IGNORECASE)
# The keys of other headers, of JSON and of lists such as "a=1;b=2" in an argument, and a value.
_KEY = re.compile(r"([\w-]+)[\"']?\s*[:=]")
_VALUE = r"[\"']?\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&\"'}]+)"
# What Hugging Face, GitHub, GitLab, AWS and Slack begin their tokens with.
_TOKEN = re.compile(r"\b(hf_|gh[a-z]_|github_pat_|glpat-|AKIA|xox[a-z]-)[A-Za-z0-9_-]{12,}")
# Of an address: user name with password, which may have a slash. The query or fragment, which may be a signature.
_USER = re.compile(r"(?<=://)(?:[^\s/]*|[^\s/:@]+:[^\s@]*)@")
_QUERY = re.compile(r"([?#])[^\s'\"]+")
# The fields of a plan that Start has too.
_PLACE = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "launcher", "backend", "bf16")
_HIDDEN = "<hidden>"

# The plan and the topology of this rank, as `export` wrote them; empty for a process that `start` did not start.
_FOUND: dict[str, Any] = {}


def export(command: Sequence[str], plan: RankPlan, topology: Topology, checks: Sequence[Mapping[str, str]]) -> str:
    """The value of contract.ORIGIN. `command`: the arguments of `entrypoint`. `checks`: of `doctor`."""
    node = {"topology": asdict(topology), "checks": list(checks)} if plan.placement.local_rank == 0 else {}
    found = {"command": without_secrets(command), "plan": plan.document(), **node}
    text = json.dumps(found, default=sorted)  # sets have no JSON
    # Linux limits a variable to 128 KiB, and the topology of 2,000 CPUs is longer.
    return base64.b64encode(zlib.compress(text.encode())).decode()


def keep(exported: str) -> None:
    """Keep what the first process exported."""
    if exported:
        _FOUND.update(json.loads(zlib.decompress(base64.b64decode(exported))))


def job_name(environ: Mapping[str, str]) -> str:
    """A name that is the same after every restart of this job; empty if no launcher would restart it."""
    agent = _AGENT_FOLDER.match(environ.get(_AGENT_FILE, ""))
    return environ.get(contract.JOB) or (agent[1] if agent else "")


def start(**more: Any) -> Start:
    """The first line of this rank's records. `more`: fields of Start that only the trainer knows."""
    plan, topology = _FOUND.get("plan", {}), _FOUND.get("topology", {})
    place = {name: plan[name] for name in _PLACE if name in plan}
    return Start(
        time=round(time.time(), 3),
        **place,
        host=socket.gethostname(),
        job=job_name(os.environ),
        pin=os.environ.get(contract.PIN, ""),
        image=os.environ.get(contract.IMAGE, ""),
        command=_FOUND.get("command", []),
        versions=packages.versions(PACKAGES),
        cpu_model=topology.get("model", ""),
        cores=sorted(os.sched_getaffinity(0)),
        plan=plan,
        topology=topology,
        checks=_FOUND.get("checks", []),
        **more,
    )


def numa_nodes() -> tuple[int, ...]:
    """The NUMA nodes of this rank's cores; empty on a machine with one node."""
    nodes = _FOUND.get("plan", {}).get("nodes", ())
    return tuple(nodes) if len(_FOUND.get("topology", {}).get("nodes", ())) > 1 else ()


def without_secrets(command: Sequence[str]) -> list[str]:
    """The command line, without the values of flags such as --hub_token and of variables such as API_KEY=..., and
    without credentials in addresses."""
    shown, hide_next = [], False
    for word in map(without_credentials, command):
        name, equals, _ = word.partition("=")
        is_secret = _SECRET.search(name.strip("-")) is not None and (word.startswith("-") or bool(equals))
        shown.append(_HIDDEN if hide_next else f"{name}={_HIDDEN}" if is_secret and equals else _inside(word))
        hide_next = is_secret and not equals
    return shown


def _inside(word: str) -> str:
    """An argument without the secrets in it."""
    for key in filter(_SECRET.search, _KEY.findall(word)):
        word = re.sub(f"({re.escape(key)}{_VALUE}", rf"\1{_HIDDEN}", word)
    return _TOKEN.sub(_HIDDEN, word)


def without_credentials(text: str) -> str:
    """Text without the user name, the password and the query of the addresses in it."""
    text = _HEADER.sub(rf"\1{_HIDDEN}", text)
    before, scheme, after = _USER.sub(f"{_HIDDEN}@", text).partition("://")
    return before + scheme + _QUERY.sub(rf"\1{_HIDDEN}", after)  # a path may contain spaces
