"""images/status.json: commands record proofs, and a proof is valid for the proved versions only."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.tiny import make_pin
from tooling.pins import parse, status
from tooling.pins.pin import TorchSource
from tooling.pins.status import PinStatus

ROW = make_pin({"torch": "2.13.0+cpu"})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(status, "TESTED", tmp_path / "tested")
    return tmp_path / "status.json"


def test_a_row_without_a_proof_is_listed(path: Path) -> None:
    assert status.of(ROW, path) == status.NOTHING


def test_a_proof_names_its_command_and_a_weaker_proof_does_not_replace_it(path: Path) -> None:
    assert status.record(ROW, PinStatus.TESTED, "./inv demo", path)
    before = path.read_bytes()
    assert not status.record(ROW, PinStatus.TESTED, "./inv demo", path)
    assert not status.record(ROW, PinStatus.RESOLVED, "./inv dev check-matrix", path)
    assert path.read_bytes() == before, "a demo of a clean checkout leaves it clean"
    proof = status.of(ROW, path)
    assert (proof.status, proof.command) == (PinStatus.TESTED, "./inv demo")


def test_a_stronger_proof_replaces_a_weaker_one(path: Path) -> None:
    status.record(ROW, PinStatus.RESOLVED, "./inv dev check-matrix", path)
    assert status.record(ROW, PinStatus.TESTED, "./inv demo", path)
    assert status.of(ROW, path).status is PinStatus.TESTED


def test_a_row_that_was_changed_afterwards_is_only_listed(path: Path) -> None:
    status.record(ROW, PinStatus.TESTED, "./inv demo", path)
    changed = replace(ROW, packages={"torch": "2.14.0+cpu"})
    assert status.of(changed, path).status is PinStatus.LISTED
    assert status.record(changed, PinStatus.RESOLVED, "./inv dev check-matrix", path)


def test_a_proof_with_the_default_indexs_torch_is_a_proof_of_the_row(path: Path) -> None:
    status.record(ROW.with_default_torch(), PinStatus.TESTED, "./inv demo --torch-source default", path)
    proof = status.of(ROW, path)
    assert (proof.status, proof.torch_source) == (PinStatus.TESTED, TorchSource.DEFAULT)


def test_a_users_own_combination_is_not_recorded(path: Path) -> None:
    assert not status.record(ROW.with_versions({"torch": "2.14.0"}), PinStatus.TESTED, "./inv demo", path)
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "[]", '{"tiny": {}}', '{"tiny": {"status": "perfect"}}'])
def test_a_broken_file_is_one_line(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(UsageError, match=r"status\.json was not written by \./inv dev check-matrix") as caught:
        status.of(ROW, path)
    assert "\n" not in str(caught.value)


def test_the_projects_proofs_are_for_existing_rows() -> None:
    rows = parse.load().pins.values()
    names = {pin.name for row in rows for pin in (row, row.with_default_torch())}
    assert set(status.recorded()) <= names


def test_an_image_is_tested_once_a_demo_has_passed_on_its_content(tmp_path: Path) -> None:
    assert not status.is_tested("abc", tmp_path)
    status.record_image("abc", {"pin": "tiny"}, tmp_path)
    assert status.is_tested("abc", tmp_path)
    assert not status.is_tested("abd", tmp_path)


def test_two_commands_that_record_at_once_keep_both_proofs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(ROW, name="other")
    together = threading.Barrier(2)
    real = status.recorded

    def recorded(path: Path) -> dict[str, status.Proof]:
        proofs = real(path)
        with suppress(threading.BrokenBarrierError):
            together.wait(0.5)  # without a lock, both have read the file
        return proofs

    monkeypatch.setattr(status, "recorded", recorded)
    with ThreadPoolExecutor() as pool:
        assert all(pool.map(lambda pin: status.record(pin, PinStatus.TESTED, "./inv demo", path), (ROW, other)))
    assert set(real(path)) == {ROW.name, other.name}
