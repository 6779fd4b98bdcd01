"""pip, but with the environment markers of the Python that wheels are for: target_pip.py MARKERS pip's arguments

pip evaluates markers such as `python_version < "3.10"` with the Python that runs it, whatever --python-version
says, so that a lock for another Python would miss packages or hold ones too many. Here the vendored function that
every evaluation asks gives the target's values instead. MARKERS is a JSON object: marker variable to value
(PEP 508). Run as a file with python -P, because this folder has a module named pip.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pip._internal.cli.main import main
from pip._vendor.packaging import markers

own = markers.default_environment


def target_environment(values: dict[str, str]) -> Any:
    """This Python's environment with the target's values; a stand-in for `default_environment`."""
    environment = dict(own())
    unknown = values.keys() - environment.keys()
    if unknown:  # a pip that names them otherwise would quietly go back to its own Python's
        raise SystemExit(f"ERROR: this pip does not know the markers {', '.join(sorted(unknown))}")
    return {**environment, **values}


if __name__ == "__main__":
    target = json.loads(sys.argv[1])
    markers.default_environment = lambda: target_environment(target)
    sys.argv = ["pip", *sys.argv[2:]]
    sys.exit(main())
