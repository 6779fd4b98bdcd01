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
# The name of a flag, a variable or a key whose value is not recorded.
_SECRET = re.compile(
    r"token$|secret|passw|passphrase|passcode|credential|bearer|authorization|cookie|conn(ection)?[_-]?str"
    r"|(^|[_.-])(tokens|(basic|o)?auth([_-]header)?|jwt|t?otp|(user)?pass|pat|pw|pwd|sas|creds?|psk|pem"
    r"|session[_-]?id|sig(nature)?)$"
    r"|(api|access|private|client|license|wandb|comet|account|signing|encryption|ssh)[_-]?key|[_.-]keys?$",
    re.IGNORECASE,
)
# Names of columns, of special tokens and of counts.
_HARMLESS = re.compile(
    r"(^|[_.-])((label|text|image|video|audio|prompt|response|question|answer|context|input|output|target|source"
    r"|dataset|column|field|sort|order|metric|state|config)s?[_-]keys?"
    r"|(pad|eos|bos|unk|mask|cls|sep|stop|special|placeholder|initializer|max|min|num|new|virtual)[_-]tokens?)$",
    re.IGNORECASE,
)
_FLAG_OF_KEYS = re.compile(r"--?keys?$")  # in JSON, "key" is the name of many things
_SEVERAL = re.compile(r"(token|key|cred|credential|secret|password|cookie)s$", re.IGNORECASE)  # --tokens A B
_COUNT = re.compile(r"[0-9][0-9_.,]*(e[0-9]+)?[kmbt]?", re.IGNORECASE)
# In a header that is one argument.
_HEADER = re.compile(r"((?:authorization\s*:|cookie\s*:|\bbearer\s)\s*)\S.*", re.IGNORECASE)
# The keys of other headers, of JSON and of lists such as "a=1;b=2" in an argument, and a value. A flag in an
# argument, such as that of `sh -c`.
_KEY = re.compile(r"(?<![\w-])([\w-]+)[\"']?\s*[:=]")
_TEXT = r"\"[^\"]*\"|'[^']*'|[^\s,;&\"'}]+"
_VALUE = rf"[\"']?\s*[:=]\s*)(?P<value>\[[^\]]*\]|{_TEXT})"
_FLAG = re.compile(rf"(?<!\S)(?P<begin>(?P<name>--?[A-Za-z][\w-]*)\s+)(?!-)(?P<value>{_TEXT})")
# What the tokens of Hugging Face, GitHub, GitLab, AWS, Slack, Google, npm, PyPI, Docker and OpenAI, and JSON web
# tokens begin with, and a private key. What follows a webhook's host. A user name with a password.
_TOKEN = re.compile(
    r"\b((hf_|gh[a-z]_|github_pat_|gl(pat|rt|dt|ptt|cbt|soat)-|AKIA|ASIA|xox[a-z]-|AIza|npm_|pypi-Ag|dckr_pat_)"
    r"[A-Za-z0-9_-]{12,}|eyJ[A-Za-z0-9_.=-]{12,}|sk-(proj-|ant-|svcacct-)?[A-Za-z0-9_]{16,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*-----|\Z)",
    re.DOTALL,
)
_WEBHOOK = re.compile(r"(\bhooks\.[\w.-]+/|://[^\s'\":]+(:[0-9]+)?/webhooks?/)[^\s'\"]+")
_LOGIN = re.compile(r"(?<![\w/.@:+-])[\w.+-]+:[^\s/@:'\"]+@(?!sha[0-9]+:)(?=\w)")
# Of an address: user name with password, which may have a slash, and is not a port before a path or a query. The
# query or fragment, which may be a signature.
_USER = re.compile(r"(?<=://)(?:[^\s/:?#]*|[^\s/:@?#]+:(?:(?![0-9]+[/?#])(?:[^\s/]*|[^\s@]*)|[0-9]+/[^\s@?#]*))@")
_QUERY = re.compile(r"([?#])[^\s'\"]+")
# The fields of a plan that Start has too.
_PLACE = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "launcher", "backend", "bf16")
HIDDEN = "<hidden>"

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
    shown, flag = [], ""  # the flag whose values are hidden
    for word in map(without_credentials, command):
        name, equals, value = word.partition("=")
        if flag and not word.startswith("--") and not word.endswith(".py"):
            is_count = _is_count(flag, word)
            shown.append(word if is_count else HIDDEN)
            flag = flag if _SEVERAL.search(flag) and not is_count else ""
            continue
        is_name = (word.startswith("-") or bool(equals)) and " " not in name
        is_secret = is_name and _is_secret(name) and not _is_count(name, value)
        shown.append(f"{name}={HIDDEN}" if is_secret and equals else _inside(word))
        flag = name if is_secret and not equals else ""
    return shown


def _is_secret(name: str) -> bool:
    """Whether what a flag, with its dashes, or a key has as its value is secret."""
    plain = name.strip("-")
    return bool(_FLAG_OF_KEYS.match(name) or (_SECRET.search(plain) and not _HARMLESS.search(plain)))


def _is_count(name: str, value: str) -> bool:
    """--tokens 5B"""
    return name.lower().endswith("tokens") and _COUNT.fullmatch(value) is not None


def _inside(word: str) -> str:
    """An argument without the secrets in it."""

    def hidden(found: re.Match[str]) -> str:
        return found[0] if _is_count(found["name"], found["value"]) else f"{found['begin']}{HIDDEN}"

    for key in filter(_is_secret, dict.fromkeys(_KEY.findall(word))):
        word = re.sub(f"(?<![\\w-])(?P<begin>(?P<name>{re.escape(key)}){_VALUE}", hidden, word)
    word = _FLAG.sub(lambda found: hidden(found) if _is_secret(found["name"]) else found[0], word)
    return _LOGIN.sub(f"{HIDDEN}@", _WEBHOOK.sub(rf"\1{HIDDEN}", _TOKEN.sub(HIDDEN, word)))


def without_credentials(text: str) -> str:
    """Text without the user name, the password and the query of the addresses in it."""
    text = _HEADER.sub(rf"\1{HIDDEN}", text)
    before, scheme, after = _USER.sub(f"{HIDDEN}@", text).partition("://")
    return before + scheme + _QUERY.sub(rf"\1{HIDDEN}", after)  # a path may contain spaces
