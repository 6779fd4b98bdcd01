"""Files that the user names with an option."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tooling.bench.forecast import models
from tooling.hosts import job
from tooling.image import lock
from tooling.pins import added, osv


@pytest.fixture
def little_memory() -> Iterator[None]:
    """1 GiB more than the process has, which may have run many tests."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    "read", [job.read_hosts, lock.read, models.read, osv._read_file, lambda path: added.parse([str(path)])]
)
def test_a_file_without_an_end_is_one_line(read: Callable[[Path], object]) -> None:
    with pytest.raises(UsageError, match="/dev/zero") as refused:
        read(Path("/dev/zero"))
    assert "\n" not in str(refused.value)
