"""The rooms (packages) and the direction of their imports. docs/architecture.md describes them."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A room imports only from rooms above it in its list. The last entry is the package's own __main__.py.
RUN_SIDE = (
    "contract",
    "cli",
    "placement",
    "machine",
    "page",
    "plan",
    "records",
    "report",
    "watch",
    "bench.cases",
    "bench.report",
    "doctor",
    "group",
    "operators",
    "train.scores",
    "adapt",
    "speed",
    "compat",
    "catalogue",
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
    "bench.forecast",
    "bench",
    "bench.train",
    "checks",
    "checks.emulate",
    "checks.faults",
    "cli",
    "",
)
# Names of two classes.
TWICE = {"Facts", "Log"}
LISTS = {"cpu_train_stack": RUN_SIDE, "tooling": TOOLING}
FOLDERS = {"cpu_train_stack": ROOT / "entrypoints" / "cpu_train_stack", "tooling": ROOT / "tooling"}
TESTS = {
    "cpu_train_stack": ROOT / "tests" / "unit" / "entrypoints",
    "tooling": ROOT / "tests" / "unit" / "tooling",
}
PACKAGES = list(LISTS)
# Rooms that stay without torch and the libraries around it, so that tooling/ may import them.
TORCH_FREE = (
    *("contract", "cli", "placement", "machine", "page", "plan", "records", "report", "watch"),
    *("bench.cases", "bench.report"),
)
# Rooms that are one module.
MODULES = {"contract", "catalogue", "bench.cases", "bench.report"}
HEAVY = {"torch", "transformers", "accelerate", "numpy"}


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def path_of(module: str) -> Path:
    """The path of a module without .py, or of a package's folder."""
    package, *parts = module.split(".")
    return FOLDERS.get(package, ROOT / package).joinpath(*parts)


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
            folder = path_of(node.module)
            for alias in node.names:
                is_module = (folder / alias.name).is_dir() or (folder / f"{alias.name}.py").is_file()
                found.append(f"{node.module}.{alias.name}" if is_module else node.module)
    return tuple(found)


@cache
def room_of(module: str) -> str:
    """tooling.bench.train.run -> bench.train. A module directly in a package has room ""."""
    parts = module.split(".")
    while parts and not path_of(".".join(parts)).is_dir():
        parts.pop()
    package, _, name = module.partition(".")
    return name if package == "cpu_train_stack" and name in MODULES else ".".join(parts[1:])


def module_of(path: Path) -> str:
    package = next(name for name, folder in FOLDERS.items() if path.is_relative_to(folder))
    return ".".join((package, *path.relative_to(FOLDERS[package]).with_suffix("").parts))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_is_in_the_list_and_says_what_it_is_for(package: str) -> None:
    folders = {path.parent.relative_to(FOLDERS[package]) for path in files(FOLDERS[package])}
    names = {".".join(folder.parts) for folder in folders}
    assert names == {*LISTS[package]} - MODULES
    for folder in folders:
        text = (FOLDERS[package] / folder / "__init__.py").read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), f"{package}/{folder}/__init__.py has no docstring"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_room_imports_only_from_rooms_above_it(package: str) -> None:
    order = LISTS[package]
    wrong = []
    for path in files(FOLDERS[package]):
        own = order.index(room_of(module_of(path)))
        for module in imports(path):
            if module.split(".")[0] == package and order.index(room_of(module)) > own:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_the_run_side_imports_nothing_of_the_build_side() -> None:
    wrong = [f"{path.relative_to(ROOT)} imports {module}"
             for path in [*files(FOLDERS["cpu_train_stack"]), *files(TESTS["cpu_train_stack"])]
             for module in imports(path)
             if module.split(".")[0] in ("tooling", "tasks", "benchmarks")]  # fmt: skip
    assert wrong == []


def test_the_build_side_imports_of_the_run_side_only_rooms_without_torch() -> None:
    wrong = [f"{path.relative_to(ROOT)} imports {module}"
             for path in files(FOLDERS["tooling"])
             for module in imports(path)
             if module.startswith("cpu_train_stack.") and room_of(module) not in TORCH_FREE]  # fmt: skip
    assert wrong == []


@pytest.mark.parametrize("room", TORCH_FREE)
def test_these_rooms_never_import_torch(room: str) -> None:
    base = FOLDERS["cpu_train_stack"].joinpath(*room.split("."))
    for path in [base.with_suffix(".py")] if room in MODULES else base.rglob("*.py"):
        assert {module.split(".")[0] for module in imports(path)}.isdisjoint(HEAVY), path


def test_a_variable_of_the_stack_is_named_only_in_the_contract() -> None:
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in FOLDERS.values()
        for path in files(folder)
        if path.name not in ("contract.py", "probe.py")  # the probe runs alone inside an image
        for node in nodes(path)
        if isinstance(node, ast.Constant) and str(node.value).startswith("CPU_TRAIN_STACK_")
    ]
    assert named == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_unit_tests_mirror_the_rooms(package: str) -> None:
    for path in files(TESTS[package]):
        room = path.parent.relative_to(TESTS[package])
        assert (FOLDERS[package] / room).is_dir() or not path.name.startswith("test_"), path


def test_a_class_has_a_name_of_its_own() -> None:
    """Search and tracebacks then lead to one class. The names in TWICE still have two."""
    classes = Counter(
        node.name for folder in FOLDERS.values() for path in files(folder) for node in nodes(path)
        if isinstance(node, ast.ClassDef)
    )  # fmt: skip
    assert {name for name, count in classes.items() if count > 1} == TWICE
