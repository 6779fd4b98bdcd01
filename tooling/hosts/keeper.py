"""An ssh session to each host while the job runs: the host removes its container when the session ends.

./inv sends a line every few seconds, and the host answers. A host that does not answer is lost. A host that
receives no line, because ./inv was killed or its machine is down, removes its container.
"""

import threading
from collections.abc import Callable

from paramiko import SSHException

from tooling.hosts import commands
from tooling.hosts.remote import Remote, RemoteError, explain

BEAT_SECONDS = 5.0
LOST_SECONDS = 20.0
# For `docker stop` and `docker rm`.
END_SECONDS = 3.0 * commands.STOP_SECONDS


class Keeper:
    """Keeps the container of a host alive; calls `lost` with the reason when the host stops answering."""

    def __init__(self, remote: Remote, container: str, lost: Callable[[str], None]) -> None:
        try:
            self._channel = remote.session(commands.keep(container))
            self._channel.settimeout(LOST_SECONDS)
            if not self._channel.recv(1):
                message = self._channel.makefile_stderr("rb").read().decode(errors="replace").strip()
                raise RemoteError(f"bash is required on the host: {message or 'the session ended'}")
        except (OSError, SSHException, EOFError) as error:
            raise RemoteError(explain(error, remote.name)) from error
        self._lost = lost
        self._ending = threading.Event()
        self.is_lost = False
        threading.Thread(target=self._beat, daemon=True).start()

    def end(self) -> None:
        """Ask the host to remove the container. removed() returns whether the host has removed it."""
        self._ending.set()
        try:
            self._channel.shutdown_write()
        except (OSError, SSHException, EOFError):
            self.is_lost = True

    def removed(self) -> bool:
        """Wait until the container is removed. False if the host does not confirm this in time."""
        if self.is_lost or not self._channel.status_event.wait(END_SECONDS):
            return False
        return bool(self._channel.exit_status == 0)

    def _beat(self) -> None:
        try:
            while not self._ending.is_set():
                self._channel.sendall(b"\n")
                if not self._channel.recv(1):
                    raise EOFError("the session ended")
                self._ending.wait(BEAT_SECONDS)
        except (OSError, SSHException, EOFError) as error:
            if not self._ending.is_set():
                self.is_lost = True
                timed_out = isinstance(error, TimeoutError)
                self._lost(
                    f"no answer for {LOST_SECONDS:.0f} s" if timed_out else str(error) or "the connection broke"
                )
