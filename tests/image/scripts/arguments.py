"""What reaches a rank: its arguments byte for byte, and no SIGHUP that was ignored. Starts itself under launchers.

With arguments, this script is a rank.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

WORDS: list[str | bytes] = [
    *("--", "$$", "$HOME", "${rank}", "$local_rank", "${local_rank}", "$(HOME)", "$$(HOME)", "%h", "{{.x}}"),
    *("`id`", "a b", "'\"", "new\nline\n", "\t", "\x01", "", "*", "~", "!", "\\", "\\n", "#", ";", "&", ":", "::"),
    *("-m", "--", "--backend", "--quiet", "-x=--", "é", "\u2028", "😀"),
    b"\xff\xfe",
]
RANKS_END, KEYS = Path("/tmp/end"), Path("/tmp/keys")
RUN = ["run", "--quiet", __file__]
ALONE = ["entrypoint", *RUN]
LAUNCH = ["entrypoint", "launch", "--nproc-per-node", "2", "--", *RUN]
NODE = ["--keys", str(KEYS), "--hosts", socket.gethostname()]
MPI_LAUNCH = ["entrypoint", "mpi-launch", *NODE, "--ranks-per-node", "2", "--", *RUN]
# Ranks that become `run`. Their launchers change some words themselves, before a rank starts.
TORCHRUN = ["torchrun", "--nproc-per-node", "2", __file__]
MPIRUN = ["mpirun", "-n", "2", "python", __file__]


def passed_on(launcher: list[str]) -> list[str | bytes]:
    """WORDS without what the launcher's own command line gives another meaning."""
    if launcher is TORCHRUN:  # macros, and argparse drops the first `--`
        return [word for word in WORDS[1:] if isinstance(word, bytes) or "$" not in word]
    return [word for word in WORDS if word not in (":", "::")] if launcher is MPIRUN else WORDS


def arguments(launcher: list[str]) -> None:
    words = passed_on(launcher)
    done = subprocess.run([*launcher, *words], capture_output=True, text=True, timeout=200, check=False)
    found = [line[line.index("[[") :] for line in done.stdout.splitlines() if "[[" in line]
    assert len(found) == (1 if launcher is ALONE else 2), (done.stdout, done.stderr)
    wanted = [[*os.fsencode(word)] for word in words]
    for line in found:
        wrong = [pair for pair in zip(wanted, json.loads(line), strict=True) if pair[0] != pair[1]]
        assert not wrong, [(bytes(one), bytes(other)) for one, other in wrong]


def hangup(launcher: list[str], ignored: bool) -> None:
    def set_up() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)

    RANKS_END.unlink(missing_ok=True)
    job = subprocess.Popen(
        [*launcher, "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=set_up,
    )
    assert job.stdout is not None
    lines = [job.stdout.readline(), job.stdout.readline()]
    assert all("ready" in line for line in lines), (lines, job.communicate())
    for pid in (job.pid, *(int(line.split()[-1]) for line in lines)):  # the ranks have sessions of their own
        if pid == job.pid or launcher is LAUNCH:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)
    if ignored:
        time.sleep(1.5)
        RANKS_END.touch()
    _, errors = job.communicate(timeout=60)
    assert job.returncode == (0 if ignored else 128 + signal.SIGHUP), (job.returncode, errors)
    assert (errors == "") is ignored, errors
    assert ignored or "SIGHUP" in errors, errors


def rank() -> None:
    import torch  # after `run`; this import makes a rank of mpirun one of `run`

    assert os.environ["WORLD_SIZE"] == "1" or torch.distributed.is_initialized()
    if sys.argv[1:] == ["wait"]:
        print("ready", os.getpid(), flush=True)
        while not RANKS_END.exists():
            time.sleep(0.1)
    else:
        print(json.dumps([[*os.fsencode(word)] for word in sys.argv[1:]]) + "\n", end="", flush=True)


def node() -> subprocess.Popen[bytes]:
    """This container as a node of mpi-launch."""
    KEYS.mkdir()
    key = KEYS / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (KEYS / "authorized_keys").write_bytes(key.with_suffix(".pub").read_bytes())
    return subprocess.Popen(["entrypoint", "sshd", "--keys", KEYS])


def check(name: str, test: Callable[..., None], *given: object) -> bool:
    try:
        test(*given)
    except Exception as error:  # noqa: BLE001 - every check runs
        print(f"{name}: {type(error).__name__}: {error}")
        return False
    print(f"{name}: ok")
    return True


if __name__ == "__main__":
    if sys.argv[1:]:
        rank()
        sys.exit()
    sshd = node()
    passed = [
        check("arguments, run", arguments, ALONE),
        check("arguments, launch", arguments, LAUNCH),
        check("arguments, mpi-launch", arguments, MPI_LAUNCH),
        check("arguments, torchrun", arguments, TORCHRUN),
        check("arguments, mpirun", arguments, MPIRUN),
        check("an ignored SIGHUP, launch", hangup, LAUNCH, True),
        check("SIGHUP, launch", hangup, LAUNCH, False),
        check("an ignored SIGHUP, mpi-launch", hangup, MPI_LAUNCH, True),
        check("SIGHUP, mpi-launch", hangup, MPI_LAUNCH, False),
    ]
    sshd.terminate()
    sys.exit(not all(passed))
