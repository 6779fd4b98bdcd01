"""Tests of entrypoints/. They import nothing of tooling/, because ./inv test --inside runs them in images, too."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
