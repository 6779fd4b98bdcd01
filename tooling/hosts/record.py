"""The record of a job: .cache/jobs/NAME with job.json (its hosts and containers) and log.txt (its output)."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import LockedError, locked, write_with_folder
from cpu_train_stack.cli.say import say
from cpu_train_stack.placement.hostfile import HostfileEntry
from tooling.basis.paths import CACHE
from tooling.hosts.job import Job

JOBS = CACHE / "jobs"


@dataclass(frozen=True)
class Record:
    """`containers`: one per host. `detached`: no ./inv launch watches it. `exit_code` None: it may be running."""

    name: str
    hosts: tuple[HostfileEntry, ...]
    containers: tuple[str, ...]
    launcher: str
    detached: bool
    exit_code: int | None = None

    @property
    def ended(self) -> bool:
        return self.exit_code is not None


def of(job: Job, detached: bool) -> Record:
    containers = tuple(job.container(index) for index in range(len(job.nodes)))
    return Record(job.name, job.nodes, containers, job.launcher, detached)


def folder_of(name: str) -> Path:
    return JOBS / name


def log_of(name: str) -> Path:
    return folder_of(name) / "log.txt"


def write(record: Record) -> None:
    write_with_folder(folder_of(record.name) / "job.json", json.dumps(asdict(record), indent=2) + "\n")


def read(name: str) -> Record | None:
    """None if no job of that name was launched from this checkout. Raises UsageError for a broken file."""
    file = folder_of(name) / "job.json"
    try:
        found = files.parse_json(files.read_below(file.parent, file.name))
        hosts = tuple(HostfileEntry(**host) for host in found.pop("hosts"))
        containers = tuple(found.pop("containers"))
        record = Record(hosts=hosts, containers=containers, **found)
        texts = (record.launcher, *containers, *(host.name for host in hosts))
        if not (
            all(isinstance(text, str) for text in texts)
            and len(hosts) == len(containers) > 0
            and record.name == name
            and isinstance(record.detached, bool)
            and isinstance(record.exit_code, int | None)
        ):
            raise ValueError("a value is wrong")
        return record
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{file} is not a file written by ./inv launch ({error}): delete it") from None


def lock_of(name: str) -> Path:
    """Held by the ./inv launch that watches the job."""
    return JOBS / f".{name}.lock"


def runs(job: Record) -> bool:
    """Whether the job may be running: an ./inv launch watches it, or it is detached without a recorded end."""
    if job.ended or job.detached:
        return not job.ended
    try:
        with locked(lock_of(job.name), waiting=None):
            return False
    except LockedError:
        return True


def ended_at(name: str) -> float:
    """When a job that has ended was last recorded or wrote output, in seconds since the epoch."""
    return max(map(files.written, (folder_of(name) / "job.json", log_of(name))))


def running() -> list[Record]:
    """The jobs that may be running. A broken file of one job does not hide the others."""
    found = []
    for name in names():
        try:
            job = read(name)
        except UsageError as error:
            say(str(error))
            continue
        if job and runs(job):
            found.append(job)
    return found


def names() -> list[str]:
    """The recorded jobs of this checkout."""
    return sorted(file.parent.name for file in JOBS.glob("*/job.json"))
