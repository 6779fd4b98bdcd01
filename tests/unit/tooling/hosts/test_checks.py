"""The checks of hosts whose connection breaks while they are compared with each other."""

from collections.abc import Callable
from typing import NoReturn, cast

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.hosts.host_jobs import job
from tests.unit.tooling.hosts.test_hosts import sound
from tooling.engine.ssh import Remote, RemoteError
from tooling.hosts import checks


class _Broken:
    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, _command: str) -> NoReturn:
        raise RemoteError("getent was not answered: the connection is closed")


ALPHA, BETA = (cast("Remote", _Broken(name)) for name in ("alpha", "beta"))


@pytest.mark.parametrize(
    ("check", "host"),
    [
        (lambda: checks._routes(job(), [ALPHA, BETA], [sound(), sound()]), "beta"),
        (lambda: checks._check_way_back(ALPHA, "beta", "10.0.0.2", sound()), "alpha"),
    ],
    ids=["the first host's name", "the way back"],
)
def test_a_broken_connection_is_a_line_with_the_name_of_its_host(check: Callable[[], object], host: str) -> None:
    with pytest.raises(UsageError, match=f"^{host}: getent was not answered: the connection is closed$"):
        check()
