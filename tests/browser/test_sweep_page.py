"""What sweep.html does in a real browser: `make browser`.

As a file from disk, with every request of the page written down. Pictures are kept in
build/browser/.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

TEMPLATE = Path(__file__).parents[2]
sys.path.append(str(TEMPLATE / "onecurve/tests/harness"))

from small_sweep import make_job  # noqa: E402

PROJECT = TEMPLATE / "build/my-project"
PICTURES = TEMPLATE / "build/browser"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))

STRATEGIES = ("single", "ddp", "pipeline")
RATES = ("0.1", "3e-3", "0.02")
SEEDS = (0, 1)
EACH = len(STRATEGIES) * len(SEEDS)
JOBS = EACH * len(RATES)
HOSTILE = "</script><script>document.title='taken'</script><img src=http://127.0.0.1:9/x.png>"


def make_sweep(sweep: Path) -> Path:
    """A grid of jobs that finished, and one that failed, as their directories are left behind."""
    for number, (strategy, rate, seed) in enumerate(product(STRATEGIES, RATES, SEEDS), start=1):
        losses = [2 * (1 - float(rate)) ** (step / 5) + 0.1 * seed for step in range(200)]
        accuracies = {step: 1 - losses[step] / 2.2 for step in range(49, 200, 50)}
        seconds = 4 + STRATEGIES.index(strategy)
        run = make_job(
            sweep,
            number,
            *(f"strategy={strategy}", f"optimizer.lr={rate}", f"seed={seed}"),
            losses=losses,
            strategy=strategy,
            seconds=seconds,
            samples_per_second=64 * len(losses) / seconds,
            peak_memory_mib=100 * number,
            **{"val/acc": accuracies[199], "train/loss": losses[-1]},
        )
        with (run / "metrics.csv").open("a") as file:
            file.writelines(f"{step},{step // 50},,{each}\n" for step, each in accuracies.items())
    typed = ("strategy=single", f"optimizer.lr={HOSTILE}", "seed=0")
    failed = make_job(sweep, JOBS + 1, *typed, losses=[])
    (failed / "metrics.json").write_text(json.dumps({"status": "failed", "error": HOSTILE}))
    (failed / "metrics.csv").unlink()
    (failed / "failure.txt").write_text(f"Traceback: {HOSTILE}")
    return sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep directory with its report."""
    directory = make_sweep(tmp_path_factory.mktemp("runs") / "grid-sweep")
    report = [sys.executable, "-m", "onecurve", "report", str(directory)]
    environment = {"PYTHONPATH": str(PROJECT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(report, check=True, env=environment)
    return directory


@pytest.fixture(scope="module")
def page(sweep: Path) -> Iterator[Any]:
    """The page, loaded, in a browser without WebGL; `requests` and `complaints` of it."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        # As root, in a container, there is no sandbox to be had.
        options = ["--no-sandbox", "--disable-3d-apis"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        page: Any = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.requests, page.complaints = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.goto((sweep / "sweep.html").as_uri())
        page.wait_for_function("document.querySelectorAll('.main-svg').length >= 3 * 3")
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURES / "sweep.png", full_page=True)
        yield page
        browser.close()


def column(page: Any, head: str, table: str = "#jobs") -> list[str]:
    """The cells below a head, from top to bottom."""
    heads = [text.strip() for text in page.locator(f"{table} th").all_inner_texts()]
    cells = page.locator(f"{table} tbody td:nth-child({heads.index(head) + 1})")
    return [text.strip() for text in cells.all_inner_texts()]


def test_nothing_is_asked_of_the_network(page: Any, sweep: Path) -> None:
    assert page.requests[0] == (sweep / "sweep.html").as_uri()
    assert all(address.startswith(("data:", "blob:")) for address in page.requests[1:])
    assert page.complaints == []
    assert page.title() == "grid-sweep"


def test_a_click_on_a_head_sorts_both_ways(page: Any) -> None:
    """As numbers, though by letters the smallest would come last; what is none comes behind."""
    rising = [rate for rate in ("3e-3", "0.02", "0.1") for _ in range(EACH)]
    head = page.locator("#jobs th", has_text="lr")
    head.click()
    assert column(page, "lr") == [*rising, HOSTILE]
    head.click()
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, "lr") == [HOSTILE, *reversed(rising)]
    # So does the keyboard.
    page.locator("#jobs th button", has_text="status").focus()
    page.keyboard.press("Enter")
    assert column(page, "status")[0] == "failed"
    assert page.locator("#jobs th[aria-sort=ascending]").count() == 1


def test_every_job_is_drawn(page: Any) -> None:
    for chart in ("loss", "objective"):
        lines = page.locator(f"#{chart} .scatterlayer .js-line")
        assert lines.count() == JOBS
        names = page.locator(f"#{chart} .legendtext").all_text_contents()
        assert sum("".join(names).count(f"strategy={name}") for name in STRATEGIES) == JOBS
        assert all(line.bounding_box()["width"] > 500 for line in lines.all())
    assert page.locator("#parallel .scatterlayer .js-line").count() == JOBS
    text = page.locator("#parallel").inner_text()
    for words in ("strategy", "lr", "seed", "val/acc", "single", "pipeline", "3e-3", "ddp"):
        assert words in text


def test_means_and_strategies_have_tables_and_a_traceback_unfolds(page: Any) -> None:
    means, strategies = "#tables table >> nth=0 >>", "#tables table >> nth=1 >>"
    assert len(column(page, "configuration", means)) == len(STRATEGIES) * len(RATES) + 1
    assert column(page, "n", means)[0] == "2"
    assert column(page, "strategy", strategies) == list(STRATEGIES)
    assert column(page, "× single", strategies) == ["1.00", "1.25", "1.50"]
    page.locator("summary").click()
    assert page.locator("details pre").inner_text() == f"Traceback: {HOSTILE}"
