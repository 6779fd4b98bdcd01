"""What is wrong with the layout of a page: scrolling sideways, broken words, overlapping or cut texts."""

from __future__ import annotations

import base64
from pathlib import Path

from selenium import webdriver

_FAULTS = Path(__file__).with_name("layout.js")


def faults(browser: webdriver.Chrome) -> list[str]:
    """One line for each fault of the page that the browser shows, with all tables unfolded."""
    browser.execute_script("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 50))")
    return list(browser.execute_script(_FAULTS.read_text(encoding="utf-8")))


def picture(browser: webdriver.Chrome, file: Path) -> None:
    """The complete page as a PNG, to look at."""
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    file.write_bytes(base64.b64decode(taken["data"]))
