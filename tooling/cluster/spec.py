"""The description of one container, and how Compose, `docker create` and the engine's API take it. Pure.

The fields have the names that Compose gives to the properties. A new property is one field, and an entry in the
tables below if docker or the API call it otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

# The period of a CPU quota: a container that has used its quota waits for the next period. 100 ms is the kernel's
# default. With 10 ms, nodes with 0.15 of a core computed 15% less and waited for each other longer.
CPU_PERIOD_US = 100_000
# docker's names of properties that Compose calls otherwise.
_OPTIONS = {
    "cpuset": "cpuset-cpus",
    "environment": "env",
    "labels": "label",
    "mem_limit": "memory",
    "memswap_limit": "memory-swap",
    "network_mode": "network",
    "stop_grace_period": "stop-timeout",
    "userns_mode": "userns",
    "volumes": "mount",
}
# What is no option: words of the command, and networks, which `docker create` cannot create.
_NO_OPTIONS = ("image", "command", "entrypoint", "networks")
# The API's names.
_HOST_CONFIG = {
    **{name: name for name in ("cap_drop", "cpu_period", "cpu_quota", "dns_search", "group_add", "mem_limit")},
    **{name: name for name in ("memswap_limit", "pids_limit", "security_opt", "shm_size")},
    "cpuset": "cpuset_cpus",
}


@dataclass(frozen=True)
class Mount:
    """A folder of this machine, mounted in a container."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """A container. An empty property is the engine's default.

    `environment` maps a variable to its value, or to None to pass the caller's own value. `cpus`: the CPU time, in
    cores; `cpuset`: the CPUs. `memory`: without swap. `stop_grace_period`: seconds.
    """

    image: str
    hostname: str = ""
    user: str = ""
    group_add: tuple[str, ...] = ()
    userns_mode: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    volumes: tuple[Mount, ...] = ()
    tmpfs: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    network_mode: str = ""
    dns_search: tuple[str, ...] = ()
    memory: str | None = None
    cpus: float | None = None
    cpuset: str = ""
    shm_size: int | str = 0
    pids_limit: int = 0
    cap_drop: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ()
    stop_grace_period: int = 0
    restart: str = ""

    @property
    def words(self) -> list[str]:
        """What follows the image in `docker create` and `docker run`, with `options` before it."""
        return [*self.entrypoint[1:], *self.command]


def keys_folder(user: str) -> str:
    """A tmpfs for sshd's copies of its keys: ssh refuses private keys that other users can read."""
    uid, gid = user.split(":")
    return f"/run/ssh:mode=0700,uid={uid},gid={gid},size=1m"


def _properties(spec: ContainerSpec) -> dict[str, Any]:
    """The properties that are not empty, with Compose's names."""
    given = {one.name: getattr(spec, one.name) for one in fields(spec)}
    given["mem_limit"] = given["memswap_limit"] = given.pop("memory")
    if cpus := given.pop("cpus"):
        given |= {"cpu_period": CPU_PERIOD_US, "cpu_quota": round(cpus * CPU_PERIOD_US)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items() if value}


def service(spec: ContainerSpec) -> dict[str, Any]:
    """A service in a Compose document."""
    given = _properties(spec) | {"stop_grace_period": f"{spec.stop_grace_period}s"}
    given["volumes"] = [
        {
            "type": "bind",
            "source": str(mount.source),
            "target": mount.target,
            "read_only": mount.read_only,
            "bind": {"create_host_path": False},
        }
        for mount in spec.volumes
    ]
    return {name: _escaped(value) for name, value in given.items()}


def options(spec: ContainerSpec) -> list[str]:
    """The options of `docker create` and `docker run`."""
    given = {name: value for name, value in _properties(spec).items() if name not in _NO_OPTIONS}
    given |= {"volumes": [_mount(mount) for mount in spec.volumes], "entrypoint": [*spec.entrypoint[:1]]}
    return [
        f"--{_OPTIONS.get(name, name.replace('_', '-'))}={text}"
        for name, value in given.items()
        for text in _texts(value)
    ]


def host_config(spec: ContainerSpec) -> dict[str, Any]:
    """The arguments of docker-py's create_host_config, except for the network and the user namespace."""
    from docker import types

    mounts = (types.Mount(one.target, str(one.source), "bind", one.read_only) for one in spec.volumes)
    given = {_HOST_CONFIG[name]: value for name, value in _properties(spec).items() if name in _HOST_CONFIG}
    return {
        **given,
        "restart_policy": {"Name": spec.restart},
        "tmpfs": dict(entry.split(":", 1) for entry in spec.tmpfs),
        "mounts": list(mounts),
    }


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [name if text is None else f"{name}={text}" for name, text in value.items()]
    return [str(one) for one in (value if isinstance(value, list) else [value])]


def _mount(mount: Mount) -> str:
    """docker reads this value as a line of a CSV file."""
    parts = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    parts += ["readonly"] if mount.read_only else []
    return ",".join(f'"{part.replace(chr(34), chr(34) * 2)}"' if set(part) & set(',"') else part for part in parts)


def _escaped(value: Any) -> Any:
    """Compose substitutes variables after a dollar sign unless the sign is doubled."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, list):
        return [_escaped(one) for one in value]
    return {name: _escaped(one) for name, one in value.items()} if isinstance(value, Mapping) else value
