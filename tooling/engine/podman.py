"""Podman as the engine: finds it, and starts the service that speaks Docker's API for the present user.

The service ends when nobody has used it for IDLE_SECONDS. Containers run without it.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import locked
from cpu_train_stack.cli.printable import last_line
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE, shown
from tooling.engine import failures
from tooling.engine.client import connect
from tooling.engine.find import EngineHost

IDLE_SECONDS = 1800  # the demo downloads a model between two calls
START_SECONDS = 60.0
ANSWER_SECONDS = 15
LOG = CACHE / "podman.log"
# Each user of a container needs an id of the host: this user's own one is not enough.
NEEDED_IDS = 65536
_DEBIANS_OWN = "sudo apt-get install podman uidmap slirp4netns netavark aardvark-dns"
_OVERLAY = (
    "mkdir -p ~/.config/containers && printf '[storage]\\ndriver = \"overlay\"\\n' > "
    "~/.config/containers/storage.conf"
)


def installed() -> bool:
    """Whether podman is on PATH."""
    return shutil.which("podman") is not None


def install_command(host: EngineHost) -> str:
    """The command or the page that explains how to install podman."""
    return _DEBIANS_OWN if host.os_id in ("debian", "ubuntu") else "https://podman.io/docs/installation"


def used() -> bool:
    """Whether this checkout has used podman before."""
    return installed() and LOG.is_file()


def is_podman(info: Mapping[str, Any]) -> bool:
    """Whether an engine's /info is that of podman."""
    return "BuildahVersion" in info


def answering(endpoint: str) -> dict[str, Any] | None:
    """The /info of the engine at `endpoint` if podman answers there, otherwise None."""
    try:
        with closing(connect(endpoint, timeout=ANSWER_SECONDS)) as client:
            info: dict[str, Any] = client.info()
    except (failures.DockerException, UsageError, failures.RequestException, OSError):
        return None
    return info if is_podman(info) else None


def ensure() -> str:
    """The endpoint of podman's service, started if it does not run. Raises UsageError with the cause."""
    facts = read_facts()
    if cause := refusal(facts):
        raise UsageError(cause)
    found = _endpoint(facts)
    LOG.parent.mkdir(parents=True, exist_ok=True)
    LOG.touch()
    if answering(found):
        return found
    with locked(CACHE / "podman.lock", lambda: say("waiting for another ./inv that is starting podman's service")):
        if not answering(found):
            if warning := slow_storage(facts):
                say(warning)
            _start(found)
    return found


def endpoint() -> str:
    """The endpoint of podman's service for this user, which may not run."""
    return _endpoint(read_facts())


def _endpoint(facts: Mapping[str, Any]) -> str:
    return "unix://" + str(facts["host"]["remoteSocket"]["path"]).removeprefix("unix://")


def read_facts() -> dict[str, Any]:
    """What `podman info` prints. Raises UsageError if it fails."""
    done = subprocess.run(("podman", "info", "--format=json"), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UsageError(f"podman info failed: {last_line(done.stderr)}")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def refusal(facts: Mapping[str, Any]) -> str | None:
    """Why `podman info` shows a podman that cannot run a cluster, and what to do. None if it can."""
    host = facts["host"]
    ids = [sum(entry["size"] for entry in host["idMappings"].get(kind) or ()) for kind in ("uidmap", "gidmap")]
    if host["security"]["rootless"] and min(ids) < NEEDED_IDS:
        return (
            f"podman has {min(ids)} user and group ids for you, expected {NEEDED_IDS}: run sudo usermod "
            "--add-subuids 100000-165535 --add-subgids 100000-165535 $USER (a range that /etc/subuid does not "
            "give to another user), then podman system migrate"
        )
    if host.get("networkBackend") == "cni":
        return (
            "podman's network backend is cni, which may not resolve the names of containers, expected netavark: "
            "install netavark and aardvark-dns, then podman system reset, which deletes your containers and images"
        )
    return None


def slow_storage(facts: Mapping[str, Any]) -> str | None:
    """A warning if podman copies the image for each container, as Debian 12's does without a configuration."""
    if facts["store"]["graphDriverName"] != "vfs":
        return None
    return (
        "warning: podman's storage driver is vfs, which copies the image for each container; to use overlay: "
        f"podman system reset (it deletes your containers and images), then {_OVERLAY}"
    )


def _start(endpoint: str) -> None:
    say(f"starting podman's service, log: {shown(LOG)}")
    Path(endpoint.removeprefix("unix://")).parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("wb") as log:
        # In a separate session, the service survives Ctrl-C and the end of ./inv.
        process = subprocess.Popen(
            ("podman", "system", "service", f"--time={IDLE_SECONDS}", endpoint),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    try:
        while not answering(endpoint):
            if process.poll() is not None or time.monotonic() > deadline:
                cause = last_line(LOG.read_text(encoding="utf-8", errors="replace")) or "no output"
                ended = f"ended with {process.returncode}" if process.poll() is not None else "does not answer"
                raise UsageError(f"podman's service {ended}: {cause} (see {shown(LOG)})")
            time.sleep(0.1)
    except BaseException:
        process.terminate()
        raise
