"""`./inv dev canaries` without an image: its exit code, its output, and the releases of --newest."""

import ast
import json
from types import SimpleNamespace
from typing import Any

import pytest
from invoke.exceptions import Exit

from cpu_train_stack import catalogue
from cpu_train_stack.adapt.adaptation import SEEN
from cpu_train_stack.cli.packages import release
from cpu_train_stack.compat import training_arguments
from tooling.basis.paths import ROOT
from tooling.checks import canaries
from tooling.pins import parse
from tooling.wheels import resolve

CANARIES = ROOT / "tests" / "image" / "scripts" / "canaries"


def row(name: str, result: str) -> dict[str, Any]:
    releases, seen = ["torch any to now"], {"torch": "2.13.0"}
    return {"name": name, "releases": releases, "seen": seen, "upstream": "", "result": result, "detail": ""}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The --set options of the images that are built."""
    found: list[tuple[str, ...]] = []

    def choice(_pin: str | None, **options: Any) -> Any:
        found.append(options["set"])
        return SimpleNamespace(ensure=lambda: (None, SimpleNamespace(id="image")))

    monkeypatch.setattr(canaries, "Choice", choice)
    return found


def result_is(monkeypatch: pytest.MonkeyPatch, *rows: dict[str, Any]) -> None:
    monkeypatch.setattr(canaries, "sing", lambda _image: {"versions": {"torch": "2.13.0"}, "rows": [*rows]})


@pytest.mark.parametrize("as_json", [True, False])
def test_an_adaptation_that_is_broken_or_not_needed_is_named_and_the_exit_code_is_1(
    monkeypatch: pytest.MonkeyPatch, built: object, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    results = ("needed", "not in this release", *canaries.ADVICE)
    rows = [row(f"name-{place}", result) for place, result in enumerate(results)]
    result_is(monkeypatch, *rows)
    with pytest.raises(Exit) as caught:
        canaries.run(None, (), newest=False, as_json=as_json)
    assert caught.value.code == 1
    assert [name for name in ("name-0", "name-1", "name-2", "name-3") if name in str(caught.value)] == [
        "name-2",
        "name-3",
    ]
    printed = capsys.readouterr().out
    assert not as_json or json.loads(printed)["rows"] == rows
    assert all(name["name"] in printed for name in rows)


def test_the_newest_releases_are_built_as_with_set_and_given_ones_are_kept(
    monkeypatch: pytest.MonkeyPatch, built: list[tuple[str, ...]]
) -> None:
    result_is(monkeypatch, row("one", "needed"))
    monkeypatch.setattr(resolve, "newest", lambda _pin, names: dict.fromkeys(names, "9.0"))
    canaries.run(None, ("peft=0.21.2",), newest=True, as_json=True)
    others = {f"{name}=9.0" for name in canaries.NEWEST if name != "peft"}
    assert set(built[0]) == {"peft=0.21.2", *others}
    assert len(built[0]) == len(canaries.NEWEST)


def test_adaptations_were_seen_to_be_needed_with_the_releases_of_the_default_row() -> None:
    packages = parse.load().pin().packages
    assert {name for name, version in SEEN.items() if release(version) < release(packages[name])} == set()


def test_every_adaptation_has_one_canary() -> None:
    keys: list[str] = []
    for path in CANARIES.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "CANARIES":
                assert isinstance(node.value, ast.Dict)
                keys += [str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)]
    assert sorted(keys) == sorted({one.name for one in catalogue.ALL} - {*training_arguments.OLD_FIELDS})
