"""What TensorBoard's pages show of a real run, in a real browser: `make browser`.

It needs Chromium and Playwright, and so is not part of `make test`, which needs only Python. Each
page is looked at once its data has come, and kept as a picture in build/browser/.
"""

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

TEMPLATE = Path(__file__).parents[2]
PROJECT = TEMPLATE / "build/my-project"
PICTURES = TEMPLATE / "build/browser"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
SOFTWARE_3D = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist")

# All text of the page, that of web components too.
TEXT = """() => {
  const found = [];
  const walk = node => {
    if (node.shadowRoot) walk(node.shadowRoot);
    for (const child of node.childNodes) {
      if (child.nodeType === 3) found.push(child.textContent.trim());
      else if (!['STYLE', 'SCRIPT', 'NOSCRIPT'].includes(child.nodeName)) walk(child);
    }
  };
  walk(document.body);
  return found.filter(Boolean).join(' | ');
}"""

# What each page shows of the run.
PAGES = {
    "timeseries": ["gradient_norm", "throughput", "val"],
    "scalars": ["gradient_norm", "train", "throughput"],
    "images": ["confusion_matrix", "images", "step | 205"],
    "histograms": ["parameters/network.c1.weight", "gradients"],
    "hparams": ["strategy", "single", "optimizer.lr", "0.002", "test/acc"],
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """TensorBoard over the runs of an empty folder, in which one was made."""
    folder = tmp_path_factory.mktemp("run")
    callbacks = "callbacks=[checkpoint,tensorboard,throughput]"
    train = [sys.executable, str(PROJECT / "train.py"), callbacks]
    train += ["trainer.max_epochs=5", "optimizer.lr=0.002", f"paths.root={folder}"]
    subprocess.run(train, cwd=folder, check=True)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    board = [sys.executable, "-m", "tensorboard.main", "--logdir", "runs", "--port", str(port)]
    with subprocess.Popen(board, cwd=folder, stderr=subprocess.DEVNULL) as server:
        yield f"http://localhost:{port}"
        server.terminate()


@pytest.fixture(scope="module")
def page(address: str) -> Iterator[Any]:
    """A page of Chromium, once TensorBoard answers."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for _ in range(60):
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", int(address.rpartition(":")[2]))) == 0:
                break
        time.sleep(1)
    with sync_playwright() as playwright:
        # As root, in a container, there is no sandbox to be had.
        options = ["--no-sandbox", *SOFTWARE_3D]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        # As wide as all of TensorBoard's tabs.
        yield browser.new_page(viewport={"width": 1900, "height": 1100})
        browser.close()


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_the_run(page: Any, address: str, name: str) -> None:
    page.goto(f"{address}/#{name}")
    page.reload()
    text = ""
    for _ in range(30):
        page.wait_for_timeout(1000)
        text = page.evaluate(TEXT)
        if all(words in text for words in PAGES[name]):
            break
    page.wait_for_timeout(1500)
    page.screenshot(path=PICTURES / f"{name}.png")
    missing = [words for words in PAGES[name] if words not in text]
    assert not missing, (missing, re.sub(r"\s+", " ", text)[:3000])
