"""Debian's Chromium without a window, for tests of the pages that this project writes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from cpu_train_stack.cli.files import locked

_PACKAGES = {"chromium": "chromium", "chromedriver": "chromium-driver"}
_FONTS = "fonts-dejavu-core"  # only recommended by Debian's chromium, but charts have texts
_FLAGS = (
    "--headless",
    "--no-sandbox",  # the tests run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)
_INSTALL_SECONDS = 600
_PAGE_SECONDS = 60


@contextmanager
def opened(profile: Path) -> Iterator[webdriver.Chrome]:
    """A browser with a new profile in this folder."""
    install(profile.parent / "chromium.lock")
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    browser.set_page_load_timeout(_PAGE_SECONDS)
    try:
        yield browser
    finally:
        browser.quit()


def install(lock: Path) -> None:
    """Install Chromium if it is missing. Skips the test where that is impossible."""
    with locked(lock, lambda: None):
        missing = [package for program, package in _PACKAGES.items() if not shutil.which(program)]
        if not missing:
            return
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            pytest.skip(f"needs {' and '.join(missing)}: not installed, and only root on Debian can install them")
        commands = (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", _FONTS, *missing])
        for arguments in commands:
            done = subprocess.run(
                ["apt-get", *arguments],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True,
                text=True,
                check=False,
                timeout=_INSTALL_SECONDS,
            )
            assert done.returncode == 0, done.stderr
