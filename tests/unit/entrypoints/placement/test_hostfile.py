"""The grammar of hostfiles, which mpi-launch and ./inv launch share."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.placement import hostfile
from cpu_train_stack.placement.hostfile import HostfileEntry


def test_every_form_of_a_line() -> None:
    lines = ["# the cluster", "", "alpha", "  me@beta slots=4  # fast", "gamma:8"]
    lines += ["10.0.0.7 slots = 2", "delta slots=2 max-slots=4"]
    assert hostfile.parse(lines, "line", users=True) == (
        HostfileEntry("alpha"),
        HostfileEntry("beta", "me", 4),
        HostfileEntry("gamma", None, 8),
        HostfileEntry("10.0.0.7", None, 2),
        HostfileEntry("delta", None, 2),
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("alpha beta", "line 2: found 'alpha beta', expected NAME"),
        ("alpha slots=many", "line 2: slots is 'many', expected a number of 1 or more"),
        ("alpha:0", "line 2: slots is '0'"),
        ("alpha:", "line 2: slots is ''"),
        ("alpha slots=", "line 2: slots is ''"),
        ("alpha:2 slots=2", "line 2: found"),
        ("@alpha", "line 2: found"),
        ("-oProxyCommand=x", "line 2: found"),
        ("fe80::1", "line 2: found 'fe80::1', expected NAME, USER@NAME"),
        ("alpha;reboot", "line 2: found"),
        ("first", "line 2: first is listed twice"),
    ],
)
def test_a_bad_line_is_reported_in_one_line(line: str, message: str) -> None:
    with pytest.raises(ValueError, match="line 2") as caught:
        hostfile.parse(["first", line], "line", users=True)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_bad_line_is_reported() -> None:
    message = r"^line 1: found 'me@a', expected NAME, NAME:SLOTS .*; line 3: slots is '0'"
    with pytest.raises(ValueError, match=message):
        hostfile.parse(["me@a", "b", "c:0"], "line", users=False)


def test_an_empty_hostfile_is_refused() -> None:
    with pytest.raises(ValueError, match="found no host"):
        hostfile.parse(["# nothing"], "line", users=True)


def test_mpi_launch_reads_the_names_of_a_file_with_comments_slots_and_options(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# the cluster\nnode-0:4\n\n10.0.0.2  # the second\nnode-2 slots=4\n")
    assert hostfile.read(str(file)) == ("node-0", "10.0.0.2", "node-2")


def test_a_list_of_hosts_may_be_longer_than_a_files_name() -> None:
    names = tuple(f"node-{number}.cluster.example" for number in range(300))
    assert hostfile.read(",".join(names)) == names


def test_a_file_that_cannot_be_read_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"^--hosts /proc/self/mem cannot be read \(.+\), expected .+$"):
        hostfile.read("/proc/self/mem")  # its first page is not mapped: also root cannot read it
