"""`--with`: a user's own packages on top of a row.

A value is a requirement (trl==1.16.0), a requirements file, a wheel, or a folder of wheels.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import read_given

# The lines of a requirements file that say where pip searches.
_INDEX_OPTION = re.compile(
    r"(--(?:index-url|extra-index-url|find-links|trusted-host)(?=[=\s])|-i|-f)[=\s]?\s*(\S+)|(--no-index|--pre)"
)
_OPTION_NAME = re.compile(r"--[^=\s]*|-.?")  # what follows may have credentials
_HASH = re.compile(r"\s--hash[= ]sha256:([0-9a-f]{64})")
_URL = "a URL: download or build the wheel, and give the file"
_COMMENT = re.compile(r"(^|\s)#.*$")
_CREDENTIALS = re.compile(r"//[^/@]*@")


@dataclass(frozen=True)
class Added:
    """The packages of one command line's `--with` options.

    `requirements`: requirements of pip (PEP 508). `wheels`: wheels on this machine. `folders`: folders of wheels,
    which pip searches. `index_options`: lines of requirements files, which may have credentials.
    `hashes`: the accepted sha256 by canonical name, of the files' --hash options.
    """

    typed: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    wheels: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()
    index_options: tuple[str, ...] = field(default=(), repr=False)
    hashes: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))

    def __bool__(self) -> bool:
        return bool(self.typed)

    @property
    def sha256(self) -> str:
        """A sha256 of what was asked for. The name of the image has its first characters."""
        facts = [*sorted(self.requirements), *sorted(files.sha256_of(wheel) for wheel in self.wheels)]
        facts += sorted(f"{name} {sha256}" for name, accepted in self.hashes.items() for sha256 in accepted)
        searched = {wheel for folder in self.folders for wheel in folder.glob("*.whl")}
        facts += sorted(f"{wheel.name} {files.sha256_of(wheel)}" for wheel in searched)
        facts += sorted(_CREDENTIALS.sub("//", option) for option in self.index_options)
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()

    @property
    def search(self) -> str:
        """The lines of a requirements file of pip that say where to search."""
        places = dict.fromkeys((*self.folders, *(wheel.parent for wheel in self.wheels)))
        # As URLs: pip splits these lines at spaces.
        links = (f"--find-links {place.as_uri()}" for place in places)
        return "".join(f"{line}\n" for line in (*self.index_options, *links))

    @property
    def wanted(self) -> str:
        """The lines of a requirements file of pip that say what to install."""
        return "".join(f"{line}\n" for line in (*self.requirements, *(wheel.as_uri() for wheel in self.wheels)))


NOTHING = Added()


def parse(values: Sequence[str]) -> Added:
    """What the `--with` options ask for. Raises UsageError with a line for each mistake."""
    found = _Collector()
    for value in values:
        found.add(value)
    if found.mistakes:
        raise UsageError("\n".join(found.mistakes))
    if values and not (found.requirements or found.wheels):
        typed = " ".join(f"--with {value}" for value in values)
        why = "a folder is only searched, so also pass --with NAME" if found.folders else "expected NAME in it"
        raise UsageError(f"{typed} names no package: {why}")
    return Added(
        typed=tuple(values),
        requirements=tuple(dict.fromkeys(found.requirements)),
        wheels=tuple(dict.fromkeys(found.wheels)),
        folders=tuple(dict.fromkeys(found.folders)),
        index_options=tuple(dict.fromkeys(found.index_options)),
        hashes=MappingProxyType({name: frozenset(sums) for name, sums in found.hashes.items()}),
    )


@dataclass
class _Collector:
    """Collects what each value asks for, and the mistakes of all values."""

    requirements: list[str] = field(default_factory=list)
    wheels: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    index_options: list[str] = field(default_factory=list)
    hashes: dict[str, set[str]] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def add(self, value: str) -> None:
        """One value of `--with`. A value with a slash, or that ends like a file, is a path."""
        path = Path(value)
        with suppress(RuntimeError):  # there is no such user, hence no such file
            path = path.expanduser()
        where = f"--with {value}"
        if "://" in value:  # may have credentials, which would get into logs and labels
            self.mistakes.append(f"--with {value.partition('@')[0].partition('://')[0].strip()}: {_URL}")
        elif value.endswith(".whl"):
            self._wheel(path.absolute(), where)
        elif path.is_dir() and os.sep in value:
            self._folder(path.absolute(), where)
        elif value.endswith(".txt") or os.sep in value.partition("@")[0]:
            self._file(path, where)
        else:
            self._requirement(value, where)

    def _wheel(self, path: Path, where: str, accepted: Sequence[str] = ()) -> None:
        try:
            package = parse_wheel_filename(path.name)[0]
        except InvalidWheelFilename:
            self.mistakes.append(
                f"{where}: {path.name} is not the name of a wheel: keep the name that pip gave it"
            )
            return
        if not path.is_file():
            self.mistakes.append(f"{where}: there is no such file")
        elif accepted and (found := files.sha256_of(path)) not in accepted:
            self.mistakes.append(f"{where}: {path.name} has the sha256 {found}, none of those in this line")
        else:
            self.wheels.append(path)
            if accepted:
                self.hashes.setdefault(package, set()).update(accepted)

    def _folder(self, path: Path, where: str) -> None:
        if any(path.glob("*.whl")):
            self.folders.append(path)
        elif any((path / name).is_file() for name in ("pyproject.toml", "setup.py")):
            self.mistakes.append(
                f"{where} is a source folder: build a wheel with pip wheel --no-deps --wheel-dir wheels {path}, "
                "and give the wheel"
            )
        else:
            self.mistakes.append(f"{where} is a folder without wheels (*.whl)")

    def _file(self, path: Path, where: str) -> None:
        try:
            text = read_given(path)
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            self.mistakes.append(f"{where} cannot be read: {why}; expected a requirements file")
            return
        lines = [*_logical_lines(text)]
        for number, line in lines:
            self._line(line, path.absolute().parent, f"{where}, line {number}")
        hashed = {bool(_HASH.search(line)): number for number, line in reversed(lines) if line[0] != "-"}
        if len(hashed) > 1:
            self.mistakes.append(
                f"{where}, line {hashed[False]}: --hash is missing, but line {hashed[True]} has one: "
                "as for pip, all packages of a file need a hash, or none"
            )

    def _line(self, line: str, folder: Path, where: str) -> None:
        if option := _INDEX_OPTION.fullmatch(line):
            name, target, flag = option.groups()
            if name in ("-f", "--find-links") and "://" not in target:
                self.folders.append((folder / target).resolve())
            else:
                self.index_options.append(flag or f"{name} {target}")
            return
        if line.startswith("-"):
            self.mistakes.append(
                f"{where}: {_OPTION_NAME.findall(line)[0]} is not supported here: give every file with a --with "
                "of its own, and a package under development as a wheel"
            )
            return
        requirement = _HASH.sub("", line).strip()
        if "://" in requirement:
            self.mistakes.append(f"{where}: {_URL}")
            return
        sums = _HASH.findall(line)
        if requirement.endswith(".whl") and "@" not in requirement:
            self._wheel((folder / requirement).resolve(), where, sums)
            return
        name = self._requirement(requirement, where)
        if name and sums:
            self.hashes.setdefault(name, set()).update(sums)

    def _requirement(self, text: str, where: str) -> str | None:
        """The canonical name, or None after a mistake."""
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            self.mistakes.append(
                f"{where}: expected a requirement such as trl==1.16.0, a requirements file (*.txt), a wheel "
                "(*.whl) or a folder of wheels (./wheels)"
            )
            return None
        self.requirements.append(str(requirement))
        return canonicalize_name(requirement.name)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The number and the text of each line without comments, continued lines joined as pip joins them."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        first = first or number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            joined += line[:-1]
            continue
        whole = _COMMENT.sub("", joined + line).strip()
        if whole:
            yield first, whole
        joined, first = "", 0
    if joined.strip():
        yield first, _COMMENT.sub("", joined).strip()
