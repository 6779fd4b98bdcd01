"""A program: pip with the environment markers of another Python. Usage: target_pip.py MARKERS PIP_ARGUMENTS...

It takes wheels only. --only-binary does not apply to a package that another one requires by its address, as in
`Requires-Dist: name @ https://...`: pip would run build code of the package on this machine to read its metadata.

pip evaluates markers such as `python_version < "3.10"` for the Python that runs pip, even with --python-version.
A lock for another Python would have missing or superfluous packages. This program replaces the function in pip
that returns the values of markers. MARKERS is a JSON object with the value of each marker variable (PEP 508).
Run this file with python -P, because its folder has a module named pip.
"""

import json
import sys
from typing import Any

from pip._internal.cli.main import main
from pip._internal.exceptions import InstallationError
from pip._internal.operations.prepare import RequirementPreparer
from pip._vendor.packaging import markers

default_environment = markers.default_environment


def target_environment(values: dict[str, str]) -> Any:
    """The markers of this Python with the values of the target. Replaces pip's `default_environment`."""
    environment = dict(default_environment())
    unknown = values.keys() - environment.keys()
    if unknown:  # pip would silently use the values of this Python
        raise SystemExit(f"ERROR: this pip has no markers named {', '.join(sorted(unknown))}")
    return {**environment, **values}


def require_wheel(requirement: Any) -> None:
    """Raises InstallationError for a source distribution, a folder or a repository, before pip fetches it."""
    link = requirement.link
    if requirement.editable or link.is_vcs or link.is_existing_dir() or not link.is_wheel:
        name = requirement.name
        raise InstallationError(
            f"{name} comes from {link.redacted_url}, because a package requires {name} @ URL, expected a wheel: "
            "let the package require a version"
        )


def checked(prepare: Any) -> Any:
    def prepare_wheel(preparer: object, requirement: Any, *arguments: Any, **options: Any) -> Any:
        require_wheel(requirement)
        return prepare(preparer, requirement, *arguments, **options)

    return prepare_wheel


if __name__ == "__main__":
    target = json.loads(sys.argv[1])
    markers.default_environment = lambda: target_environment(target)
    for name in ("_prepare_linked_requirement", "prepare_editable_requirement"):
        setattr(RequirementPreparer, name, checked(getattr(RequirementPreparer, name)))
    sys.argv = ["pip", *sys.argv[2:]]
    sys.exit(main())
