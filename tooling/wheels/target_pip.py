"""A program: pip with the environment markers of another Python. Usage: target_pip.py MARKERS PIP_ARGUMENTS...

pip evaluates markers such as `python_version < "3.10"` for the Python that runs pip, even with --python-version.
A lock for another Python would have missing or superfluous packages. This program replaces the function in pip
that returns the values of markers. MARKERS is a JSON object with the value of each marker variable (PEP 508).
Run this file with python -P, because its folder has a module named pip.
"""

import json
import sys
from typing import Any

from pip._internal.cli.main import main
from pip._vendor.packaging import markers

default_environment = markers.default_environment


def target_environment(values: dict[str, str]) -> Any:
    """The markers of this Python with the values of the target. Replaces pip's `default_environment`."""
    environment = dict(default_environment())
    unknown = values.keys() - environment.keys()
    if unknown:  # pip would silently use the values of this Python
        raise SystemExit(f"ERROR: this pip has no markers named {', '.join(sorted(unknown))}")
    return {**environment, **values}


if __name__ == "__main__":
    target = json.loads(sys.argv[1])
    markers.default_environment = lambda: target_environment(target)
    sys.argv = ["pip", *sys.argv[2:]]
    sys.exit(main())
