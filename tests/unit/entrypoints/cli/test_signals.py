"""Signals that arrive while a command removes what it has started."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from cpu_train_stack.cli import signals
from tests.signals import default_handlers, interrupt


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Those of ./inv, whoever started the tests."""
    with default_handlers():
        yield


def test_a_signal_ends_the_command_after_the_block() -> None:
    done = []

    def block() -> None:
        with signals.delayed():
            interrupt()
            interrupt()
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with signals.delayed():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_other_threads_are_not_interrupted_anyway() -> None:
    done = []

    def work() -> None:
        with signals.delayed():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done
