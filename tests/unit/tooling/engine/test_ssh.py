"""Commands on other machines through ssh. Real servers: tests/cluster/test_hosts.py."""

import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.placement.hostfile import HostfileEntry
from tests.unit.tooling.engine.fake_ssh import FakeSsh
from tooling.engine.ssh import Done, Remote, RemoteError
from tooling.hosts.connections import connect

# A command without a time limit would block the test.
pytestmark = pytest.mark.timeout(30)


def opened(name: str, user: str | None = None) -> Remote:
    host = Remote(name, user)
    host.open()
    return host


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSsh:
    return FakeSsh(tmp_path, monkeypatch)


def test_run_returns_the_output_and_the_exit_code(fake: FakeSsh) -> None:
    host = opened("there", "me")
    assert host.run('cat; echo "it\'s" >&2; exit 3', b"said\n") == Done(3, "said\n", "it's\n")
    host.close()
    assert all("-l me " in call and " -- there" in call for call in fake.calls)


def test_a_command_that_does_not_end_times_out_and_the_next_one_runs(fake: FakeSsh) -> None:
    host = opened("there")
    with pytest.raises(RemoteError, match=r"^sleep 20 did not end within 0\.3 s: log in to the host"):
        host.run("sleep 20", limit=0.3)
    assert host.run("echo").code == 0
    host.close()


@pytest.mark.parametrize("output", ["", " >&2"])
def test_a_host_that_prints_without_end_is_given_up(fake: FakeSsh, output: str) -> None:
    host = opened("there")
    with pytest.raises(RemoteError, match=r"^yes( >&2)? printed more than 16 MiB"):
        host.run(f"yes{output}")
    assert host.run("echo").code == 0
    host.close()


def test_what_a_host_prints_beside_its_commands_takes_no_space(fake: FakeSsh) -> None:
    fake.set("connect", "head -c 50000000 /dev/zero >&2")
    host = opened("there")
    (folder,) = (Path(option.partition("=")[2]).parent for option in host._options if "ControlPath" in option)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1_000_000
    host.close()


def test_the_folder_of_a_killed_command_is_deleted(fake: FakeSsh) -> None:
    left = Path(tempfile.mkdtemp(prefix="cts-ssh-", dir="/tmp"))
    host = opened("there")
    assert not left.exists()
    host.close()


def test_all_commands_use_one_connection_which_asks_nothing_and_ends_if_the_host_is_silent(fake: FakeSsh) -> None:
    fake.settings(hostname="10.0.0.7", port=22, connecttimeout="none", controlpath="none")
    host = opened("there")
    host.run("echo")
    host.close()
    _, master, command = fake.calls
    for call in (master, command):
        assert "-oBatchMode=yes" in call
        assert "-oConnectTimeout=10" in call
        assert "-oServerAliveInterval=" in call
    paths = [[word for word in call.split() if word.startswith("-oControlPath=")] for call in (master, command)]
    assert paths[0] == paths[1] != []
    assert "-oControlMaster=yes" not in command
    assert not Path(paths[0][0].partition("=")[2]).parent.exists()


def test_the_users_own_connection_and_time_limit_are_used(fake: FakeSsh) -> None:
    fake.settings(hostname="10.0.0.7", port=22, connecttimeout=77, controlpath="/somewhere")
    fake.set("check", "exit 0")
    assert opened("there").run("echo").code == 0
    assert "-oControlMaster=no" in fake.calls[-1]
    assert "ControlPath" not in fake.calls[-1]
    assert "-oConnectTimeout=77" in fake.calls[-1]


# As ssh ends after SIGTERM.
ENDED = "trap 'exit 255' TERM; echo said; sleep 20 >&- 2>&- & wait"


@pytest.mark.parametrize(
    ("command", "closed", "times"),
    [("echo said", False, 0), ("echo said; exit 255", False, 1), (ENDED, True, 0)],
    ids=["it ends", "the connection breaks", "closed"],
)
def test_a_stream_reports_that_the_connection_broke(fake: FakeSsh, command: str, closed: bool, times: int) -> None:
    lost: list[bool] = []
    host = opened("there")
    stream = host.stream(command, lost=lambda: lost.append(True))
    assert next(stream) == b"said\n"
    if closed:
        host.close()
    assert list(stream) == []
    assert len(lost) == times
    host.close()


def test_a_connection_that_breaks_during_a_command_is_an_error(fake: FakeSsh) -> None:
    host = opened("there")
    with pytest.raises(RemoteError, match=r"^echo Timeout, was not answered: 10\.0\.0\.7 port 22 does not answer"):
        host.run("echo Timeout, server there not responding. >&2; exit 255")
    host.close()


CHANGED = "@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@\nHost key verification failed."


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (CHANGED, "the host key of 10.0.0.7 port 22 has CHANGED"),
        ("Host key verification failed.", "is not known: log in to the host once"),
        ("op@10.0.0.7: Permission denied (publickey).", "10.0.0.7 port 22 refuses your login (publickey)"),
        ("ssh: Could not resolve hostname x: Name or service not known", "x does not resolve (Name or"),
        ("ssh: connect to host 10.0.0.7 port 22: Connection refused", "cannot be reached (Connection refused)"),
        ("ssh: connect to host 10.0.0.7 port 22: Connection timed out", "does not answer within 10 s"),
        ("kex_exchange_identification: Connection closed by remote host", "closed the connection"),
        ("first\nsomething new", "10.0.0.7 port 22: something new"),
        ("", "10.0.0.7 port 22: ssh failed without a message"),
    ],
    ids=lambda text: text.rpartition("\n")[2][:30],
)
def test_a_failure_of_ssh_is_explained_in_one_line(fake: FakeSsh, printed: str, reason: str) -> None:
    fake.set("connect", f"echo '{printed}' >&2; exit 255")
    with pytest.raises(RemoteError) as caught:
        opened("there")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_host_that_does_not_answer_is_given_up(fake: FakeSsh) -> None:
    fake.settings(hostname="10.0.0.7", port=22, connecttimeout=1)
    fake.set("connect", "exec sleep 20")
    began = time.monotonic()
    with pytest.raises(RemoteError, match=r"does not answer within 3 s"):
        opened("there")
    assert time.monotonic() - began < 10


def test_a_login_shell_that_runs_nothing_is_named(fake: FakeSsh) -> None:
    fake.set("connect", "exit 1")
    with pytest.raises(RemoteError, match="the login shell ended with code 1"):
        opened("there")


def test_settings_of_a_login_do_not_change_commands_where_ssh_has_them(fake: FakeSsh) -> None:
    fake.settings(hostname="10.0.0.7", port=22, sessiontype="none", stdinnull="yes")
    assert opened("there").run("cat", b"said").out == "said"
    assert "-oSessionType=default -oStdinNull=no" in fake.calls[-1]
    assert "ForkAfterAuthentication" not in fake.calls[-1]


def test_a_configuration_that_ssh_refuses_is_named(fake: FakeSsh) -> None:
    fake.set("settings.sh", "printf 'config: line 2: Bad option: caf\\351\\nconfig: terminating\\n' >&2; exit 255")
    with pytest.raises(
        RemoteError, match="cannot use its configuration for there: config: line 2: Bad option: caf"
    ):
        opened("there")


def test_an_ssh_that_cannot_be_started_ends_a_stream(fake: FakeSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[bool] = []
    host = opened("there")
    with monkeypatch.context() as changed:
        changed.setenv("PATH", "/nowhere")
        with pytest.raises(RemoteError, match=r"^ssh cannot be started: No such file"):
            host.run("echo")
        assert list(host.stream("echo", lost=lambda: lost.append(True))) == []
    assert lost == [True]
    host.close()


def test_the_end_of_the_connections_ends_commands(fake: FakeSsh) -> None:
    fake.settings(hostname="10.0.0.7", port=22, controlpath="/somewhere")
    fake.set("check", "exit 0")
    host = opened("there")
    threading.Timer(0.5, host.close).start()
    began = time.monotonic()
    with pytest.raises(RemoteError, match="was not answered"):
        host.run("exec sleep 20")
    with pytest.raises(RemoteError, match="is closed"):
        host.run("echo")
    assert time.monotonic() - began < 10


def test_without_ssh_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with ExitStack() as stack, pytest.raises(UsageError, match="openssh-client"):
        connect([HostfileEntry("there")], stack)
