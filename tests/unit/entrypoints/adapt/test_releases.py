"""Which releases need an adaptation, its canary, and the table of the libraries' private names."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import cpu_train_stack
from cpu_train_stack import catalogue
from cpu_train_stack.adapt import private
from cpu_train_stack.adapt.adaptation import NOW, SEEN, Adaptation, Releases, Situation

PACKAGE = Path(cpu_train_stack.__file__).parent
PRIVATE_NAME = re.compile(r"_[A-Za-z]\w*")
# Python's own.
PYTHON = {
    *("_Environ", "_actions", "_collections_abc", "_data", "_exit", "_fields", "_getframe", "_missing_"),
    *("_negative_number_matcher", "_run_exitfuncs", "_threading_atexits"),
}
# Parts of texts, attributes that the stack adds, and attributes of older releases that it restores.
OURS = {
    *(
        "_computed_again_by",
        "_cpu_train_stack_clock",
        "_cpu_train_stack_old_fields",
        "_cpu_train_stack_output",
        "_cpu_train_stack_scale",
        "_job",
    ),
    *("_loss", "_past", "_per_second", "_records", "_runtime", "_samples", "_score", "_thresh", "_token"),
}


def installed(version: str) -> Situation:
    return Situation((), {"accelerate": version} if version else {}, "gloo")


@pytest.mark.parametrize(
    ("version", "applies"),
    [("1.0.0", False), ("1.1.0", True), ("1.1.0rc1", True), ("1.4.2", True), ("1.5", False), ("", False)],
)
def test_an_adaptation_applies_from_a_release_up_to_another(version: str, applies: bool) -> None:
    releases = Releases("accelerate", "1.1", "1.5")
    adaptation = Adaptation("name", "effect", (releases,), {}, when="always")
    verdict = adaptation.check(installed(version))
    assert verdict.applies is applies
    assert (verdict.why == "always") is applies


def test_one_of_several_packages_is_enough_and_an_obstacle_comes_after_them() -> None:
    releases = (Releases("transformers"), Releases("accelerate", "1.1"))
    adaptation = Adaptation("name", "effect", releases, {}, obstacle=lambda _situation: "no kernels")
    assert adaptation.check(installed("1.1")).why == "no kernels"
    assert adaptation.check(installed("1.0")).why == "transformers is not installed"


def test_its_hooks_are_called_where_it_applies_with_a_situation_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []
    ours = SimpleNamespace(hook=lambda situation, module: called.append(f"{situation.name} {module.__name__}"))
    monkeypatch.setitem(sys.modules, "cpu_train_stack.compat.no_such_module", ours)
    needed, released = {NOW: "compat.no_such_module:hook"}, (Releases("accelerate", "1.1"),)
    for version in ("1.0", "1.1"):
        Adaptation("one", "effect", released, needed).install(installed(version))
        Adaptation("two", "effect", released, needed, finds_out=True).install(installed(version))
        Adaptation("three", "effect", (), needed, obstacle=lambda _: "no kernels").install(installed(version))
    assert called == ["two sys", "one sys", "two sys"]


@pytest.mark.parametrize("adaptation", catalogue.ALL, ids=lambda one: str(one.name))
def test_every_hook_exists_and_takes_a_situation_and_a_module(adaptation: Adaptation) -> None:
    assert adaptation.hooks
    for hook in adaptation.hooks.values():
        place, _, name = hook.partition(":")
        tree = ast.parse(PACKAGE.joinpath(*place.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
        (found,) = (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name)
        assert len(found.args.args) == 2


def test_a_line_is_printed_once_by_rank_0_and_in_train_only_where_nothing_is_adapted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for rank in (0, 1):
        script = Situation((), {}, "gloo", rank)
        for line in ("a", "b", "a"):
            script.named("one").report(line)
        script.named("two").report("a")
        train = Situation((), {}, "gloo", rank, in_train=True)
        train.report("c")
        train.report("d", is_fallback=True)
    assert capsys.readouterr().err.splitlines() == ["adapted (one): a", "adapted (one): b", "note: d"]


def test_every_adaptation_was_seen_with_a_release_of_its_packages() -> None:
    assert {one.package for adaptation in catalogue.ALL for one in adaptation.releases} == {*SEEN}


def private_names(path: Path) -> set[str]:
    """The private names in a module that it does not define itself."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    own: set[str] = set()
    used: set[str] = set()
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.Attribute):
            is_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (own if is_self and isinstance(node.ctx, ast.Store) else used).add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used.add(node.value)
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("__"):
            used |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Import):
            used |= {part for alias in node.names for part in alias.name.split(".")}
    return {name for name in used - own if PRIVATE_NAME.fullmatch(name)}


def test_the_private_names_of_libraries_are_in_the_table() -> None:
    listed = {name for names in private.PRIVATE.values() for name in names}
    found = {path: private_names(path) for path in PACKAGE.rglob("*.py") if path.name != "private.py"}
    unlisted = {f"{path.relative_to(PACKAGE)}: {', '.join(names)}" for path, used in found.items()
                if (names := sorted(used - listed - PYTHON - OURS))}  # fmt: skip
    assert unlisted == set()


def test_the_table_has_no_name_that_the_run_side_no_longer_uses() -> None:
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py") if path.name != "private.py"]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    assert {name for names in private.PRIVATE.values() for name in names} - words == set()
