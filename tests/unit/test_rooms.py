"""The rooms (packages) and the direction of their imports. docs/architecture.md describes them."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A room imports only from rooms above it in its list. The last entry is the package's own __main__.py.
ENTRYPOINTS = (
    "contract",
    "cli",
    "placement",
    "machine",
    "page",
    "plan",
    "records",
    "report",
    "watch",
    "doctor",
    "group",
    "operators",
    "train.scores",
    "adapt",
    "train.flags",
    "train.data",
    "train.model",
    "train.output",
    "train.tasks",
    "train.loop",
    "train",
    "generate",
    "bench",
    "rank",
    "launch",
    "launch.mpi",
    "",
)
TOOLING = (
    "basis",
    "pins",
    "wheels",
    "engine",
    "image",
    "cluster",
    "hosts",
    "kubernetes",
    "hpc",
    "forecast",
    "bench",
    "bench.train",
    "checks",
    "checks.emulate",
    "checks.faults",
    "cli",
    "",
)
LISTS = {"entrypoints": ENTRYPOINTS, "tooling": TOOLING}
# What tooling/ may import of entrypoints/ besides contract.
SHARED = {
    "entrypoints.bench.cases",
    "entrypoints.cli.errors",
    "entrypoints.doctor.checks",
    "entrypoints.doctor.page",
    "entrypoints.launch.mpi.hostfile",
    "entrypoints.launch.mpi.ssh",
    "entrypoints.machine.cpus",
    "entrypoints.machine.facts",
    "entrypoints.machine.files",
    "entrypoints.machine.shared_memory",
    "entrypoints.machine.topology",
    "entrypoints.page.blocks",
    "entrypoints.page.render",
    "entrypoints.plan.ccl",
    "entrypoints.plan.command",
    "entrypoints.plan.cores",
    "entrypoints.plan.page",
    "entrypoints.plan.planner",
    "entrypoints.report.compare",
    "entrypoints.watch.main",
}
TORCH_FREE = ("contract", "cli", "placement", "machine", "page", "plan", "records", "report", "watch")
HEAVY = {"torch", "transformers", "accelerate", "numpy"}


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """The syntax tree of a file, which several tests read."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, also inside functions. Of `from a import b`: a.b if it is a module."""
    found = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            folder = ROOT / node.module.replace(".", "/")
            for alias in node.names:
                is_module = (folder / alias.name).is_dir() or (folder / f"{alias.name}.py").is_file()
                found.append(f"{node.module}.{alias.name}" if is_module else node.module)
    return tuple(found)


def room_of(module: str) -> str:
    """tooling.bench.train.run -> bench.train. A module directly in a package has room ""."""
    parts = module.split(".")
    while parts and not (ROOT / "/".join(parts)).is_dir():
        parts.pop()
    return "contract" if module == "entrypoints.contract" else ".".join(parts[1:])


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("package", LISTS)
def test_every_folder_is_in_the_list_and_says_what_it_is_for(package: str) -> None:
    folders = {path.parent.relative_to(ROOT / package) for path in files(package)}
    names = {".".join(folder.parts) for folder in folders}
    assert names == {*LISTS[package]} - {"contract"}
    for folder in folders:
        text = (ROOT / package / folder / "__init__.py").read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), f"{package}/{folder}/__init__.py has no docstring"


@pytest.mark.parametrize("package", LISTS)
def test_a_room_imports_only_from_rooms_above_it(package: str) -> None:
    order = LISTS[package]
    wrong = []
    for path in files(package):
        own = order.index(room_of(module_of(path)))
        for module in imports(path):
            if module.split(".")[0] == package and order.index(room_of(module)) > own:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_entrypoints_import_nothing_of_the_build_side() -> None:
    wrong = [f"{path.relative_to(ROOT)} imports {module}"
             for path in [*files("entrypoints"), *files("tests/unit/entrypoints")]
             for module in imports(path)
             if module.split(".")[0] in ("tooling", "tasks", "benchmarks")]  # fmt: skip
    assert wrong == []


def test_tooling_imports_of_entrypoints_only_what_is_listed() -> None:
    used = {module for path in files("tooling") for module in imports(path) if module.startswith("entrypoints")}
    assert used - {"entrypoints", "entrypoints.contract"} == SHARED


@pytest.mark.parametrize("room", TORCH_FREE)
def test_these_rooms_never_import_torch(room: str) -> None:
    base = ROOT / "entrypoints" / room
    for path in [base.with_suffix(".py")] if room == "contract" else base.rglob("*.py"):
        assert {module.split(".")[0] for module in imports(path)}.isdisjoint(HEAVY), path


def test_a_variable_of_the_stack_is_named_only_in_the_contract() -> None:
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in LISTS
        for path in files(package)
        if path.name not in ("contract.py", "probe.py")  # the probe runs alone inside an image
        for node in nodes(path)
        if isinstance(node, ast.Constant) and str(node.value).startswith("CPU_TRAIN_STACK_")
    ]
    assert named == []


@pytest.mark.parametrize("package", LISTS)
def test_the_unit_tests_mirror_the_rooms(package: str) -> None:
    for path in files(f"tests/unit/{package}"):
        room = path.parent.relative_to(ROOT / "tests" / "unit" / package)
        assert (ROOT / package / room).is_dir() or not path.name.startswith("test_"), path
