"""Tests of the run side. They import nothing of tooling/, because ./inv test --inside runs them in images, too."""

from pathlib import Path

import cpu_train_stack

# The folder from which Python imports the package.
ROOT = Path(cpu_train_stack.__file__).parents[1]
