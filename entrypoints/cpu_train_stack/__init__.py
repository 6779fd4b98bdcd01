"""The run side: what runs inside the image, in one process for each rank. `__main__` lists the commands."""

import os
import sys

# `python -m` puts the current folder first on sys.path: a user's json.py or datasets/ there would hide the
# library's. While `-m` imports this package argv[0] is "-m". The package's own root stays (a checkout); with
# -P (safe_path, Python 3.11) nothing was put there, and while a .pth file imports this package, nothing yet.
if sys.argv[:1] == ["-m"] and not getattr(sys.flags, "safe_path", False):
    _root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib may be hidden
    if sys.path[0] != _root and os.path.isdir(sys.path[0]):  # noqa: PTH112
        del sys.path[0]
