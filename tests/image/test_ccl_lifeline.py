"""The lifeline of a ccl group, which detects dead ranks: attacks, refused connections, frozen ranks, forgeries."""

import json
from typing import Any

import pytest

from tests import containers
from tests.image.container_scripts import SCRIPTS
from tooling.checks.conformance import CHECKS

# A detected death is raised after two seconds. The rest is a margin for a busy machine.
SOON = 8.0
Reports = dict[str, dict[int, dict[str, Any]]]


def run_cases(image: str, cases: str, ranks: int = 2) -> tuple[Reports, str]:
    """The report of each rank in each case, and all output. No agent ends the ranks when one is killed."""
    each = f"RANK=$rank LOCAL_RANK=$rank entrypoint run --backend ccl /scripts/lifeline.py {cases}"
    start = f"for rank in $(seq 0 {ranks - 1}); do {each} & done; wait"
    place = {"WORLD_SIZE": f"{ranks}", "LOCAL_WORLD_SIZE": f"{ranks}", "OMP_NUM_THREADS": "1"}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    mounts = ("--volume", f"{SCRIPTS}:/scripts:ro", "--volume", f"{CHECKS}:/checks:ro", "--shm-size", "1g")
    env = {**place, **master, "PYTHONPATH": "/checks"}
    done = containers.run(image, "sh", "-c", start, env=env, docker_args=mounts)
    reports: Reports = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            report = json.loads(line)
            reports.setdefault(report["case"], {})[report["rank"]] = report
    return reports, done.stdout + done.stderr


@pytest.fixture(scope="module")
def survived(image: str) -> tuple[Reports, str]:
    """The cases in which no rank dies."""
    return run_cases(image, "refused rank kind forked seconds")


def warnings(output: str, rank: int, reason: str) -> list[str]:
    text = f"ccl: rank {rank} has no lifeline connection, so a dead rank or different calls may go unnoticed"
    return [line for line in output.splitlines() if text in line and reason in line]


def test_a_thousand_unknown_clients_neither_delay_nor_break_the_lifeline(image: str) -> None:
    reports, output = run_cases(image, "attack")
    assert reports["attack"][0]["seconds"] < SOON, output
    assert "rank 1 has ended" in reports["attack"][0]["error"], output
    assert reports["attack"][0]["used"] < SOON, output
    assert not warnings(output, 0, ""), output


def test_a_frozen_rank_neither_blocks_the_group_nor_counts_as_dead(image: str) -> None:
    reports, output = run_cases(image, "frozen")
    check_both_warned_and_worked(reports["frozen"], output, "the handshake timed out")


def test_both_ends_report_a_connection_that_was_refused(survived: tuple[Reports, str]) -> None:
    reports, output = survived
    check_both_warned_and_worked(reports["refused"], output, "refused")


def check_both_warned_and_worked(reports: dict[int, dict[str, Any]], output: str, reason: str) -> None:
    for rank in (0, 1):
        assert len(warnings(output, rank, reason)) == 1, output
        assert reports[rank].get("sum") == 2, output
    assert reports[0]["used"] > 3, "the call was too short to prove anything"


@pytest.mark.parametrize("forged", ["rank", "kind"])
def test_an_invalid_message_is_ignored(survived: tuple[Reports, str], forged: str) -> None:
    reports, output = survived
    assert [reports[forged][rank].get("sum") for rank in (0, 1)] == [2, 2], output
    assert reports[forged][0]["used"] > 3, "the call was too short to prove anything"
    # One line in each of the two groups, for any number of invalid messages.
    assert output.count("ccl: rank 1 received an invalid message from rank 0") == 2, output


@pytest.fixture(scope="module")
def five_ranks(image: str) -> tuple[Reports, str]:
    """The cases in which some ranks give up or leave a group before others."""
    return run_cases(image, "abort left", ranks=5)


def test_an_abort_is_reported_to_all_ranks_while_all_are_alive(five_ranks: tuple[Reports, str]) -> None:
    reports, output = five_ranks
    assert sorted(reports["abort"]) == [0, 1, 2, 3, 4], output
    for rank in (0, 1, 3, 4):
        assert "rank 2 has given the group up" in reports["abort"][rank]["error"]
        assert reports["abort"][rank]["used"] < SOON


def test_ranks_that_have_left_report_the_departures_of_others(five_ranks: tuple[Reports, str]) -> None:
    reports, output = five_ranks
    for name, reason in (("left", "rank 3 has left the group"), ("killed", "rank 3 has ended")):
        error, seconds = reports["left"][0][name]
        assert reason in error, output
        assert seconds < SOON, output


def test_a_child_forked_while_the_ranks_connect_inherits_no_connection(survived: tuple[Reports, str]) -> None:
    reports, output = survived
    for rank in (0, 1):
        assert reports["forked"][rank]["opened"] >= 2, output
        assert reports["forked"][rank]["inherited"] == 0
        assert reports["forked"][rank]["sum"] == 2


@pytest.mark.parametrize(
    ("value", "expected"), [("2", [2000, 1, 1, 1]), ("4", [4000, 1, 1, 3]), ("3600", [3_600_000, 1440, 720, 3])]
)
def test_the_time_until_a_host_is_unreachable_is_configurable(
    survived: tuple[Reports, str], value: str, expected: list[int]
) -> None:
    reports, output = survived
    for rank in (0, 1):
        assert expected in reports["seconds"][rank][value], output


@pytest.mark.parametrize("value", ["1", "3601", "4.5", "ten", ""])
def test_an_invalid_number_of_seconds_is_an_error(survived: tuple[Reports, str], value: str) -> None:
    reports, output = survived
    found = f"ccl: CPU_TRAIN_STACK_UNREACHABLE_SECONDS is '{value}'"
    for rank in (0, 1):
        error = reports["seconds"][rank][value]
        assert error == f"{found}, expected an integer number of seconds from 2 to 3600", output
