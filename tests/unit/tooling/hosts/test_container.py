"""The end and the output of a container, from the answers of its host's Docker. Real restarts: tests/cluster."""

import json
from collections.abc import Callable, Iterator

import pytest

from cpu_train_stack.cli.errors import UsageError
from tooling.engine.ssh import Done, Remote, RemoteError
from tooling.hosts import commands, container, control
from tooling.hosts.connections import each
from tooling.hosts.container import End

AWAY = Done(1, "", "Cannot connect to the Docker daemon at unix:///run/docker.sock. Is the docker daemon running?")
AWAY_28 = Done(1, "", "failed to connect to the docker API: dial unix /run/docker.sock: no such file or directory")
GONE = Done(1, "[]", "Error: No such object: one")


class Host(Remote):
    """Answers `docker wait`, `docker logs` and `docker inspect` with its texts in turn, and repeats the last."""

    def __init__(self, states: list[Done | None], waits: list[str] | None = None, logs: list[bytes] | None = None):
        self.name = "beta"
        self._states, self._waits, self._logs = states, waits or [""], logs or [b""]

    def run(self, command: str, stdin: bytes = b"", limit: float = 60.0) -> Done:
        answer = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if answer is None:
            raise RemoteError("docker inspect did not end within 60 s")
        return answer

    def stream(self, command: str, lost: Callable[[], object] | None = None) -> Iterator[bytes]:
        if command == commands.wait("one"):
            yield (self._waits.pop(0) if len(self._waits) > 1 else self._waits[0]).encode()
            return
        text = self._logs.pop(0) if len(self._logs) > 1 else self._logs[0]
        yield from (text[start : start + 5] for start in range(0, len(text), 5))


def ended(code: int, out_of_memory: bool = False, status: str = "exited") -> Done:
    state = {"Status": status, "ExitCode": code, "OOMKilled": out_of_memory, "Error": "", "FinishedAt": ""}
    return Done(0, json.dumps(state), "")


RUNNING = ended(0, status="running")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(container, "ENGINE_SECONDS", 0.1)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("states", "waits", "code", "how"),
    [
        ([ended(0)], ["0\n"], 0, "exited with code 0"),
        ([RUNNING, RUNNING, ended(7)], ["", "", "7\n"], 7, "exited with code 7"),
        (
            [AWAY, AWAY, ended(143)],
            [""],
            143,
            "ended by signal 15 (exit code 143), while Docker was stopped or restarted",
        ),
        ([AWAY], ["143\n"], 143, "ended by signal 15 (exit code 143), while Docker was stopped or restarted"),
        ([AWAY], [""], None, "Docker has not answered for 0 s"),
        ([AWAY_28], [""], None, "Docker has not answered for 0 s"),
        ([None], [""], None, "Docker has not answered for 0 s"),
        ([AWAY, GONE], [""], None, "its container was removed"),
        ([ended(137, True)], ["137\n"], 137, "was killed: out of memory"),
        ([ended(7)], ["\u0663", "0" * 10**6], 7, "exited with code 7"),
    ],
    ids=[
        *("an end", "long", "killed by the restart", "stopped for good", "its socket is gone", "gone for good"),
        *("Docker hangs", "removed", "out of memory", "no code"),
    ],
)
def test_wait_returns_how_the_container_ended(
    states: list[Done | None], waits: list[str], code: int | None, how: str
) -> None:
    assert container.wait(Host(states, waits), "one") == End("beta", code, how)


@pytest.mark.timeout(20)
def test_output_is_not_repeated_after_a_restart() -> None:
    lines = [b"line 1\n", b"line 2\n", b"line 3\n", b"end\n"]
    logs = [b"line 1\nli", b"line 1\nline 2\nunexpected EOF\n", b"".join(lines[:3]), b"".join(lines)]
    states: list[Done | None] = [RUNNING, AWAY, RUNNING, AWAY, ended(0), ended(0)]
    given = b"".join(container.output(Host(states, logs=logs), "one"))
    assert given == b"line 1\nline 2\nunexpected EOF\nline 3\nend\n"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(RUNNING, "running", id="running"),
        pytest.param(ended(7), "exited, exit code 7", id="ended"),
        pytest.param(GONE, "gone", id="removed"),
        pytest.param(AWAY, "unknown: Docker does not answer", id="Docker is stopped"),
        pytest.param(None, "unknown: Docker does not answer", id="Docker hangs"),
    ],
)
def test_status_distinguishes_a_removed_container_from_a_stopped_docker(
    answer: Done | None, expected: str
) -> None:
    assert control._state(Host([answer]), "one") == expected


@pytest.mark.parametrize("answer", ["[]", "{", '"x"', "[" * 100_000, '{"Status": "exited", "ExitCode": "x"}', "3"])
def test_an_answer_that_is_no_state_of_a_container_is_one_line(answer: str) -> None:
    host = Host([Done(0, answer, "")], logs=[b"line 1\n"])
    with pytest.raises(UsageError, match=r"^beta: docker inspect printed ") as refused:
        each([host], lambda remote: control._state(remote, "one"), ["beta"])
    assert "\n" not in str(refused.value)
    assert b"".join(container.output(host, "one")) == b"line 1\n"


def test_a_host_cannot_print_the_lines_of_another_one() -> None:
    state = {"Status": "created\x1b[2J", "ExitCode": 1, "OOMKilled": False, "FinishedAt": ""}
    answer = Done(0, json.dumps({**state, "Error": "x\nalpha exited with code 0"}), "")
    shown = (control._state(Host([answer]), "one"), container.wait(Host([answer], ["1"]), "one").how)
    assert [text for text in shown if not text.isprintable()] == []


@pytest.mark.timeout(20)
def test_a_host_that_prints_without_an_end_instead_of_an_exit_code_does_not_hang() -> None:
    class Endless(Host):
        def stream(self, command: str, lost: Callable[[], object] | None = None) -> Iterator[bytes]:
            while True:
                yield b"1" * 1000

    assert container.wait(Endless([ended(3)]), "one").code == 3
