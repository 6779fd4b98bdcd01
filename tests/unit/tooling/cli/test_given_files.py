"""Files that the user names with an option."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tooling.bench.forecast import models
from tooling.hosts import job
from tooling.image import lock
from tooling.pins import added, osv


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    "read", [job.read_hosts, lock.read, models.read, osv._read_file, lambda path: added.parse([str(path)])]
)
def test_a_file_without_an_end_is_one_line(read: Callable[[Path], object]) -> None:
    with pytest.raises(UsageError, match="/dev/zero") as refused:
        read(Path("/dev/zero"))
    assert "\n" not in str(refused.value)
