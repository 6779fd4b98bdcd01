"""README.md, CONTRIBUTING.md and docs/: their links, and the facts that they quote from the code."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

import tasks
from cpu_train_stack import contract
from tests.unit.tooling.cli.program import run
from tests.unit.tooling.image.examples import LOCK
from tooling.image import lock

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), ROOT / "bindings" / "README.md"])
README_LINES = 150
# Strings of the sources are compared without their breaks over lines.
JOINED = re.compile(r'"\s*\n\s*f?"')


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """GitHub's anchors of the headings."""
    headings = re.findall(r"^#+ (.*)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def sources() -> str:
    files = [path for folder in ("entrypoints", "tooling", "bindings") for path in (ROOT / folder).rglob("*")]
    return "\n".join(JOINED.sub("", text(path)) for path in files if path.suffix in (".py", ".cpp", ".hpp"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_the_readme_is_short() -> None:
    assert len(text(ROOT / "README.md").splitlines()) <= README_LINES


def test_the_index_lists_every_page() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", text(DOCS / "README.md")))
    assert listed == {page.name for page in DOCS.glob("*.md")} - {"README.md"}


def test_every_variable_of_the_stack_is_described() -> None:
    names = {value for value in vars(contract).values() if str(value).startswith("CPU_TRAIN_STACK_")}
    described = set(re.findall(r"CPU_TRAIN_STACK_\w+", text(DOCS / "variables.md")))
    assert names
    assert names <= described


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    folders = "entrypoints|tooling|tests|images|kernels|bindings|compose|examples|benchmarks"
    named = re.findall(rf"`((?:{folders})/[\w./-]+)`", text(page))
    real = [name for name in named if not Path(name).stem.isupper()]  # PIN.txt stands for every pin's file
    assert [name for name in real if not (ROOT / name).exists()] == []


def test_every_message_of_troubleshooting_is_in_the_sources() -> None:
    """A message is quoted in the first column, with … for the part that changes."""
    rows = re.findall(r"^\| (`.*?) \| .* \| .* \|$", text(DOCS / "troubleshooting.md"), re.MULTILINE)
    quoted = [part.strip() for row in rows for span in re.findall(r"`([^`]+)`", row) for part in span.split("…")]
    known = sources()
    assert len(rows) > 20
    assert [part for part in quoted if part not in known] == []


def test_the_charts_figures_are_those_of_the_benchmarks() -> None:
    shown = re.findall(r">(\d\.\d\d)</text>", text(DOCS / "speed-up.svg"))
    measured = set(re.findall(r"(\d\.\d\d)x", text(DOCS / "benchmarks.md")))
    assert shown
    assert set(shown) <= measured


def test_the_recipes_have_the_tested_lines_of_the_guides() -> None:
    rows = tomllib.loads(text(ROOT / "tests" / "image" / "guides.toml"))["row"]
    table = "\n".join(f"| {row['line']} | {row['answer']} |" for row in rows)
    assert f"| in a guide | with this image |\n| --- | --- |\n{table}\n\n" in text(DOCS / "recipes.md"), table


def test_each_recipe_has_a_complete_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its options are understood. test_scripts.py checks the flags of `train`."""
    (tmp_path / "scripts").mkdir()
    lock.write(LOCK, tmp_path / "image.lock.json")
    monkeypatch.chdir(tmp_path)
    sections = [part for part in text(DOCS / "recipes.md").split("\n## ")[1:] if "\nThe guide" in part]
    assert len(sections) == 6
    for section in sections:
        commands = re.findall(r"^    \./inv (.*)$", section, re.MULTILINE)
        assert commands, section
        for command in commands:
            words = shlex.split(command)
            if words[0] == "up":
                words.insert(1, "--print-compose")
            code, out, err = run(tasks.SECTIONS, words, capsys)
            assert (code, err) == (0, ""), command
            assert words[words.index("--") + 1] in out
