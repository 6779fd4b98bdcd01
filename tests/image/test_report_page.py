"""The pages of `report` in a browser: drawn completely, readable by keyboard, quick, and without network."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from cpu_train_stack.records.record import Event, Log
from cpu_train_stack.report import compare, scaling
from cpu_train_stack.report import folder as job_folder
from tests import synthetic_records
from tests.image import browser as chromium
from tests.image import layout

EVIL = "<img src=x onerror=alert(1)>"  # a dialog makes each later call fail
REPOSITORY = Path(__file__).parents[2]
FORECAST = [
    *(sys.executable, "-m", "tooling", "plan-cluster", "--model", "bert-base", "--samples", "100000"),
    *("--single-node-samples-per-second", "20", "--batch-size", "16", "--ranks-per-node", "2"),
]
JOBS = ("html in texts", "failed", "one rank", "straggler", "no step", "two jobs", "forecast", "first evaluation")
# Names of folders are the names of the curves.
WIDE = ("64 ranks", "six jobs", "long names", "long host")
# Each with the charts and the pictures of cores on its page.
COMMANDS = {
    "plan": (["cpu_train_stack", "plan", "--local-world-size", "2"], 0, 1),
    "doctor": (["cpu_train_stack", "doctor", "--quick"], 0, 1),
    "inv doctor": (["tooling", "doctor"], 0, 1),
    "matrix": (["tooling", "matrix"], 0, 0),
}
_MOST_BYTES = 5_000_000
_MOST_MILLISECONDS = 2000
_DRAW_SECONDS = 20
# Charts whose canvas has one color only.
_BLANK = """
return [...document.querySelectorAll("figure.chart")].filter((figure) => {
  const canvas = figure.querySelector("canvas");
  const pixels = new Uint32Array(
    canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return new Set(pixels).size < 5;
}).map((figure) => figure.querySelector("h3").textContent);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium.opened(tmp_path_factory.mktemp("browser") / "profile") as opened:
        yield opened


def show(browser: webdriver.Chrome, file: Path, width: int = 1280, colors: str = "light") -> float:
    """Open the page. Returns the milliseconds until all charts are drawn."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    paint(browser, colors)
    browser.get(file.as_uri())
    WebDriverWait(browser, _DRAW_SECONDS).until(lambda _: drawn(browser))
    return float(drawn(browser))


def paint(browser: webdriver.Chrome, colors: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": colors}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def drawn(browser: webdriver.Chrome) -> Any:
    return browser.execute_script("return document.documentElement.dataset.drawn")


def live(browser: webdriver.Chrome) -> str:
    return str(browser.find_element(By.ID, "live").get_attribute("textContent"))


def errors(browser: webdriver.Chrome) -> list[str]:
    """What the console has shown since the last call."""
    return [entry["message"] for entry in browser.get_log("browser")]


def job(folder: Path, name: str) -> Path:
    """The page of a job, or of two."""
    if name == "failed":
        synthetic_records.write(folder, end=Event(synthetic_records.BEGIN + 200, 100, "failure", text=EVIL))
    elif name == "one rank":
        synthetic_records.write(folder, world_size=1, ranks_per_node=1)
    elif name == "straggler":
        synthetic_records.write(folder, world_size=12, slow={5: {"compute": 1.4, "throttled": 0.6}})
    elif name == "no step":
        synthetic_records.append(folder, [synthetic_records.start(0, 1, 1, 100)])
    elif name == "forecast":
        forecast = subprocess.check_output([*FORECAST, "--json"], cwd=REPOSITORY)
        (synthetic_records.write(folder) / scaling.FORECAST).write_bytes(forecast)
    elif name == "first evaluation":  # of records before 1.1: its time is that since the machine's start
        synthetic_records.write(folder, end=Event(synthetic_records.BEGIN + 200, 0, "evaluation", 13718.187))
    elif name == "two jobs":
        jobs = [synthetic_records.write(folder / "a"), synthetic_records.write(folder / "b", world_size=2)]
        return compare.write(jobs, folder / "compare.html")
    elif name in ("six jobs", "long names"):
        named = "learning-rate-{}e-5-batch-16" if name == "six jobs" else "x" * 149 + "{}"
        folders = [folder / named.format(number) for number in range(6)]
        jobs = [synthetic_records.write(one, world_size=1, ranks_per_node=1, steps=5) for one in folders]
        return compare.write(jobs, folder / "compare.html")
    elif name == "long host":  # and a metric's name
        log = Log(synthetic_records.BEGIN + 90, 100, {"eval_" + "m" * 120: 0.5})
        synthetic_records.write(folder, change=lambda start: replace(start, host="h" * 200))
        synthetic_records.append(folder, [synthetic_records.start(0, 1, 1, 100, host="h" * 200), log])
    elif name == "64 ranks":
        synthetic_records.write(folder, world_size=64, ranks_per_node=4, steps=30, slow={5: {"compute": 1.4}})
    else:
        synthetic_records.write(
            folder, change=lambda start: replace(start, config={"model_name_or_path": EVIL}, command=[EVIL])
        )
    return job_folder.write(folder)


def page_of(name: str, folder: Path) -> Path:
    """The page that a command writes."""
    command = COMMANDS[name][0]
    file = folder / "page.html"
    subprocess.run([sys.executable, "-m", *command, "--html", str(file)], cwd=REPOSITORY, check=False)
    return file


def test_the_band_of_a_forecast_is_filled(browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, job(tmp_path, "forecast"))
    bands = browser.execute_script("return charts.map((chart) => chart.plot.bands.length)")
    assert sum(bands) == 1
    browser.find_elements(By.CSS_SELECTOR, ".plot")[bands.index(1)].send_keys(Keys.HOME)
    read = live(browser)
    assert read.startswith("nodes 1: ")
    assert "forecast, low " in read


def test_html_in_texts_is_shown_literally(browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, job(tmp_path, "html in texts"))
    assert EVIL in browser.find_element(By.CSS_SELECTOR, ".about").text
    assert EVIL in browser.find_element(By.CSS_SELECTOR, "pre").text
    assert EVIL in browser.title
    assert browser.find_elements(By.TAG_NAME, "img") == []


def test_arrow_keys_read_the_values_of_a_chart(browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, job(tmp_path, "four ranks"))
    chart = browser.find_element(By.CSS_SELECTOR, ".plot")
    cursor = chart.find_element(By.CSS_SELECTOR, ".u-cursor-x")
    chart.send_keys(Keys.HOME)
    first, at_first = live(browser), cursor.get_attribute("style")
    chart.send_keys(Keys.ARROW_RIGHT)
    second, at_second = live(browser), cursor.get_attribute("style")
    assert first.startswith("step 1: logged 0.")
    assert ", each step 0." in first
    assert second.startswith("step 2: ")
    assert at_first != at_second
    chart.send_keys(Keys.ARROW_LEFT)
    assert live(browser) == first


@pytest.mark.parametrize(
    ("picture", "key", "text"),
    [
        (".bars", Keys.ARROW_DOWN, "rank 0: 0.88"),
        (".strip", Keys.ARROW_RIGHT, "start at step 0"),
    ],
    ids=["bars", "time line"],
)
def test_arrow_keys_read_the_other_pictures(
    picture: str, key: str, text: str, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    show(browser, job(tmp_path, "four ranks"))
    browser.find_element(By.CSS_SELECTOR, picture).send_keys(key)
    assert live(browser).startswith(text)


def test_the_data_of_a_chart_unfold_as_a_table(browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, job(tmp_path, "four ranks"))
    figure = browser.find_element(By.CSS_SELECTOR, "figure.chart")
    figure.find_element(By.TAG_NAME, "summary").click()
    WebDriverWait(browser, _DRAW_SECONDS).until(lambda _: figure.find_elements(By.TAG_NAME, "tbody"))
    rows = figure.find_elements(By.CSS_SELECTOR, "details tbody tr")
    assert len(rows) == 100
    assert rows[-1].text.startswith("100 0.")


def test_the_charts_change_to_elapsed_time(browser: webdriver.Chrome, tmp_path: Path) -> None:
    show(browser, job(tmp_path, "two jobs"))
    browser.find_element(By.CSS_SELECTOR, "input[value=seconds]").click()
    chart = browser.find_element(By.CSS_SELECTOR, ".plot")
    chart.send_keys(Keys.END)
    assert live(browser).startswith("102.2 s: a 0.")
    assert errors(browser) == []
    assert browser.execute_script(_BLANK) == []


@pytest.mark.parametrize("name", [*JOBS, *WIDE, *COMMANDS])
def test_a_page_is_drawn_without_network_and_fits_into_windows_of_three_widths(
    name: str, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    file = page_of(name, tmp_path) if name in COMMANDS else job(tmp_path, name)
    found = []
    for width, first, second in ((1280, "light", "dark"), (900, "light", "dark"), (420, "dark", "light")):
        show(browser, file, width, first)
        if width == 1280:
            check_drawn(browser, name)
        for colors in (first, second):
            paint(browser, colors)
            found += [f"{width} px, {colors}: {fault}" for fault in layout.faults(browser)]
            if "CTS_PICTURES" in os.environ:
                layout.picture(browser, Path(os.environ["CTS_PICTURES"]) / f"{name}-{width}-{colors}.png")
    assert found == []


def check_drawn(browser: webdriver.Chrome, name: str) -> None:
    assert errors(browser) == []
    assert browser.execute_script(_BLANK) == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    charts = len(browser.find_elements(By.CSS_SELECTOR, "figure.chart"))
    if name in COMMANDS:
        _, wanted, pictures = COMMANDS[name]
        assert charts == wanted
        assert len(browser.find_elements(By.CSS_SELECTOR, ".drawing svg .core")) >= pictures
    elif name in JOBS:
        assert charts >= (0 if name == "no step" else 8)


def test_dark_mode_is_dark_and_a_print_of_it_is_light(browser: webdriver.Chrome, tmp_path: Path) -> None:
    def lightness() -> int:
        script = "return getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"
        return int(sum(browser.execute_script(script))) // 3

    file = job(tmp_path, "four ranks")
    show(browser, file)
    assert lightness() == 255
    show(browser, file, colors="dark")
    assert lightness() < 60
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert lightness() == 255
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert lightness() < 60


def test_a_job_of_64_ranks_and_20_000_steps_is_small_and_quick(browser: webdriver.Chrome, tmp_path: Path) -> None:
    synthetic_records.write(tmp_path, world_size=64, steps=20_000, ranks_per_node=4, steps_per_line=20)
    file = job_folder.write(tmp_path)
    assert file.stat().st_size < _MOST_BYTES
    # The quickest of three: other tests use the same cores.
    assert min(show(browser, file) for _ in range(3)) < _MOST_MILLISECONDS
    assert browser.execute_script(_BLANK) == []
