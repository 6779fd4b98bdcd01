"""Bare-metal hosts for tests: containers with OpenSSH's server, an address each, and a Docker client.

Each host has a separate network: a wrapper around its Docker client joins containers that ask for the host's
network to the network of the host's container. The hosts use this machine's engine, so that no image is copied; a
host without the image has a separate engine (tests.second_engine).
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import containers, signals
from tests.second_engine import SecondEngine
from tooling.basis.identity import IDENTITY
from tooling.basis.paths import ROOT
from tooling.cluster import users
from tooling.cluster.keys import pair

IMAGE = f"cpu-train-stack-test-host:{IDENTITY}"
DOCKERFILE = """\
FROM {base}
RUN apt-get update -q && \\
    apt-get install -q -y --no-install-recommends iproute2 openssh-server && \\
    apt-get clean && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* && mkdir -p /run/sshd
"""
USER = "op"
# The user is who the tests' files belong to; it may use the engine by the socket's group, as on a real host.
SCRIPT = """\
set -e
[ ! -e /engine ] || ln -s /engine/docker.sock /run/docker.sock
group=$(stat -L -c %g /run/docker.sock)
getent group $group >/dev/null || groupadd -g $group engine
useradd -m -p '*' -s /bin/bash -u {uid} -G $group {user}
install -D -o {user} -m 0600 /keys/authorized_keys /home/{user}/.ssh/authorized_keys
chown -R {user}: /home/{user}
install -m 0600 /keys/host_key /etc/ssh/host_key
exec /usr/sbin/sshd -D -e -p {port} -h /etc/ssh/host_key -o UsePAM=no -o PasswordAuthentication=no
"""
# OpenSSH reads the configuration in the home folder of the account, whatever HOME is.
SSH = """\
#!/bin/sh
exec {ssh} -F {home}/.ssh/config "$@"
"""
# Both keep the command lines of the processes that run on the host whenever it calls its engine.
DIRECT = """\
#!/bin/sh
cat /proc/[0-9]*/cmdline >>{commands} 2>/dev/null
exec /usr/local/bin/docker-client "$@"
"""
WRAPPER = """\
#!/bin/sh
cat /proc/[0-9]*/cmdline >>{commands} 2>/dev/null
for word; do
  shift
  [ "$word" = --network=host ] && word=--network=container:{name}
  set -- "$@" "$word"
done
exec /usr/local/bin/docker-client "$@"
"""


@dataclass(frozen=True)
class Host:
    """A running host. `container`: its name in Docker; `address`, `port`: of its sshd; `key`: its public key."""

    name: str
    container: str
    address: str
    port: int
    key: str


def docker(*arguments: str, stdin: bytes = b"") -> str:
    done = subprocess.run(["docker", *arguments], input=stdin, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


class Machines:
    """Hosts on a separate network, and a home folder whose ssh configuration lists them."""

    def __init__(self, folder: Path) -> None:
        ssh = shutil.which("ssh")
        if ssh is None:
            pytest.skip("needs ssh, as ./inv launch does: install openssh-client")
        self.folder, self.home = folder, folder / "home"
        self.network = containers.unique_name()
        self.hosts: dict[str, Host] = {}
        self.jobs: set[str] = set()  # launched from here
        (self.home / ".ssh").mkdir(parents=True)
        private, self._public = pair()
        key = self.home / ".ssh" / "id_ed25519"
        key.touch(mode=0o600)
        key.write_text(private)
        self.programs = folder / "programs"
        self.programs.mkdir()
        (self.programs / "ssh").write_text(SSH.format(ssh=ssh, home=self.home))
        (self.programs / "ssh").chmod(0o755)
        docker("network", "create", self.network)

    def start(
        self, name: str, port: int, engine: SecondEngine | None = None, mounts: Mapping[str, str] | None = None
    ) -> Host:
        """Starts a host named `name` in ssh's configuration. Its own host name does not resolve elsewhere.

        `engine`: a separate engine, whose host network is not that of the host's container.
        """
        container = containers.unique_name()
        folder = self.folder / container
        folder.mkdir()
        private, public = pair()
        for file, text in {
            "host_key": private,
            "authorized_keys": f"{self._public}\n",
            "docker": (DIRECT if engine else WRAPPER).format(name=container, commands=self.commands),
        }.items():
            (folder / file).write_text(text)
        (folder / "docker").chmod(0o755)
        client = str(Path(shutil.which("docker") or "docker").resolve())
        binds = {
            str(folder): "/keys:ro",
            f"{folder}/docker": "/usr/local/bin/docker:ro",
            client: "/usr/local/bin/docker-client:ro",
            # The folder, because a restarted engine creates its socket again.
            **({str(engine.run): "/engine"} if engine else {"/var/run/docker.sock": "/run/docker.sock"}),
            str(self.shared): str(self.shared),
            **(mounts or {}),
        }
        uid, _ = users.container_user()
        docker(
            *("run", "--detach", f"--name={container}", f"--hostname=bare-{name}", f"--network={self.network}"),
            *(f"--volume={source}:{target}" for source, target in binds.items()),
            *(IMAGE, "sh", "-c", SCRIPT.format(uid=uid, user=USER, port=port)),
        )
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        address = docker("inspect", "--format", form, container)
        self.hosts[name] = Host(name, container, address, port, public)
        return self.hosts[name]

    @property
    def shared(self) -> Path:
        """A folder that all hosts share, like that of a file server."""
        folder = self.folder / "shared"
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        return folder

    @property
    def commands(self) -> Path:
        """The file of the command lines of the hosts' processes, each argument ended by a zero byte."""
        return self.shared / "commands"

    def configure(self, extra: Mapping[str, str], changed: Sequence[str] = ()) -> None:
        """Writes ~/.ssh. gamma is behind alpha, and the key of beta has another name.

        `extra`: hosts that are down. `changed`: known by another key.
        """
        entries = []
        for one in self.hosts.values():
            own = {"beta": "  HostKeyAlias key-of-beta\n", "gamma": "  ProxyJump alpha\n"}.get(one.name, "")
            entries.append(f"Host {one.name}\n  HostName {one.address}\n  Port {one.port}\n{own}")
        entries += [f"Host {name}\n  HostName {address}\n" for name, address in extra.items()]
        files = {"IdentityFile": "id_ed25519", "UserKnownHostsFile": "known_hosts"}
        entries.append(f"Host *\n  User {USER}\n  ConnectTimeout 5\n")
        entries += [f"  {key} {self.home}/.ssh/{name}\n" for key, name in files.items()]
        (self.home / ".ssh" / "config").write_text("".join(entries))
        known = ""
        for one in self.hosts.values():
            name = "key-of-beta" if one.name == "beta" else f"[{one.address}]:{one.port}"
            known += f"{name} {pair()[1] if one.name in changed else one.key}\n"
        (self.home / ".ssh" / "known_hosts").write_text(known)

    def wait(self) -> None:
        """Waits until every sshd listens."""
        for host in self.hosts.values():
            deadline = time.monotonic() + 20
            while (
                "Server listening"
                not in subprocess.run(
                    ["docker", "logs", host.container], capture_output=True, text=True, check=True, timeout=60
                ).stderr
            ):
                assert time.monotonic() < deadline, f"the sshd of {host.name} does not start"
                time.sleep(0.1)

    def file(self, *lines: str) -> str:
        """A hostfile."""
        path = self.folder / "hosts"
        path.write_text("".join(f"{line}\n" for line in lines))
        return str(path)

    def environ(self, **variables: str) -> dict[str, str]:
        """The environment of a user who has this home."""
        path = f"{self.programs}:{os.environ['PATH']}"
        return {**os.environ, "SSH_AUTH_SOCK": "", "PATH": path, **variables}

    def launch(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """`./inv launch` in the background, its output in pipes."""
        self.jobs.update(word.removeprefix("--name=") for word in arguments if word.startswith("--name="))
        return subprocess.Popen(
            [str(ROOT / "inv"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environ(**variables),
            preexec_fn=signals.as_at_a_terminal,
        )

    def inv(self, *arguments: str, timeout: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs ./inv to its end."""
        process = self.launch(*arguments, **variables)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def close(self) -> None:
        for host in self.hosts.values():
            subprocess.run(["docker", "rm", "-fv", host.container], capture_output=True, check=False, timeout=60)
        subprocess.run(["docker", "network", "rm", self.network], capture_output=True, check=False, timeout=60)
