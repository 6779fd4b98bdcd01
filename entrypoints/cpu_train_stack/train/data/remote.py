"""Data files at a URL, such as s3:// or https://: fsspec lists them and copies them to local files."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from cpu_train_stack.cli.errors import UsageError, one_line
from cpu_train_stack.records.origin import without_credentials

# Folders with copies. They are deleted when the process ends: rows are read each time they are needed.
_COPIES: list[tempfile.TemporaryDirectory[str]] = []
# The address of each copy, without secrets.
_ADDRESSES: dict[Path, str] = {}


def is_url(path: str) -> bool:
    return "://" in path


def path_of(address: str) -> PurePosixPath:
    """The path of a file. The query of a signed address does not belong to it."""
    return PurePosixPath(urlsplit(address).path)


def shown(path: str | Path) -> str:
    """A path as the user knows it: for a copy, its address."""
    return _ADDRESSES.get(Path(path), str(path))


def copy(url: str, is_file: bool, choose: Callable[[Iterable[PurePosixPath]], list[PurePosixPath]]) -> list[Path]:
    """Copy a file, or the files that `choose` takes from a folder or from the matches of a pattern.

    Raises UsageError.
    """
    with _readable(url):
        import fsspec

        system, root = fsspec.core.url_to_fs(url)
        if is_file:  # not isfile and isdir: from an HTTP server, isdir downloads the file
            names = [root]
        else:
            listed = system.glob(root) if "*" in url else system.ls(root, detail=False)
            found = {path_of(name): name for name in listed}
            names = [found[path] for path in choose(found)]
        _COPIES.append(tempfile.TemporaryDirectory(prefix="train-"))
        # Two files of a pattern may have the same name.
        copies = [Path(_COPIES[-1].name, str(number), path_of(name).name) for number, name in enumerate(names)]
        for one in copies:
            one.parent.mkdir()
        system.get(names, [str(one) for one in copies])
        addresses = [url] if is_file else map(system.unstrip_protocol, names)
        _ADDRESSES.update(zip(copies, map(without_credentials, addresses)))
    return copies


@contextmanager
def _readable(url: str) -> Iterator[None]:
    """Turn every error of fsspec and its packages into UsageError, without secrets of addresses in its text."""
    shown = without_credentials(url)
    try:
        yield
    except UsageError:
        raise
    except ImportError as error:
        found = re.search(r"nstall (\w+)", str(error))
        package = found[1] if found else "PACKAGE"
        raise UsageError(
            f"data file '{shown}' cannot be read ({one_line(error)}): build an image with the package, "
            f"./inv build --with {package}"
        ) from error
    except Exception as error:
        reason = re.sub(r"(?<=://)[^/\s]*@|\?[^\s'\")]+", "", one_line(error))
        raise UsageError(
            f"data file '{shown}' cannot be read ({type(error).__name__}: {reason}): check the address, "
            "the network and the credentials"
        ) from error
