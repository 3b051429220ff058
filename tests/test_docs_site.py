"""`make docs` here and in a project: built with warnings as errors, links checked, offline."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest
from baking import LIBRARY, TEMPLATE, bake, environment_of, run_in

BIN = Path(sys.executable).parent
STRATEGIES = ("single", "dp", "ddp", "fsdp", "pipeline", "tensor", "mesh")
# What a page fetches to be shown; a link that one may follow is none of it.
FETCHED = re.compile(r'<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)="((?:https?:)?//[^"]*)"')


def make_docs(folder: Path, *variables: str) -> subprocess.CompletedProcess[str]:
    return run_in(folder, "make", "docs", *variables, env=environment_of(folder))


def has_all(site: Path, *pages: str) -> None:
    """The pages are there, fetch nothing from elsewhere, and from the disk have no search."""
    assert {f"{page}.html" for page in pages} <= {path.name for path in site.iterdir()}
    hidden = 'if (location.protocol === "file:") document.documentElement.classList.add('
    assert all(hidden in (site / f"{page}.html").read_text() for page in pages)
    fetched = {
        address for page in site.rglob("*.html") for address in FETCHED.findall(page.read_text())
    }
    assert fetched == set()


def has_the_library(site: Path) -> None:
    """Every public name and drawing."""
    reference = (site / "api.html").read_text()
    named = re.findall(r'id="onecurve\.(?:launch\.in_ranks\.|parity\.runs\.)?(\w+)"', reference)
    source = (LIBRARY / "src/onecurve/__init__.py").read_text()
    public = re.findall(r'^    "(\w+)",$', source, re.MULTILINE)
    assert len(public) >= 18
    assert set(public) <= set(named)
    for strategy in STRATEGIES:
        assert f'src="pictures/{strategy}.svg"' in (site / f"{strategy}.html").read_text(), strategy


def test_the_templates_site() -> None:
    done = make_docs(TEMPLATE, f"BIN={BIN}", "-o", ".venv/installed")
    assert done.returncode == 0, done.stdout + done.stderr
    site = TEMPLATE / "build/docs/site"
    has_all(site, "index", "start", "project", "tasks", "benchmarks", "results", "cluster")
    has_the_library(site)
    for name in re.findall(r'src="(pictures/\w+\.svg)"', (site / "benchmarks.html").read_text()):
        assert "</svg>" in (site / name).read_text(), name


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bake(tmp_path_factory.mktemp("docs") / "out", project_name='A "name": 1 & 2 # 3')


def test_a_projects_site(project: Path) -> None:
    done = make_docs(project, f"VENV={BIN.parent}")
    assert done.returncode == 0, done.stdout + done.stderr
    has_all(project / "build/site", "index", "project", "tasks", "api")
    (named,) = re.findall(r"^Open (\S+)\.$", done.stdout, re.MULTILINE)
    assert (project / named).exists()
    assert ".tasks.classification.Classification" in (project / "build/site/api.html").read_text()
    title = re.search("<title>(.*)</title>", (project / "build/site/project.html").read_text())
    assert title
    assert html.unescape(title[1]).endswith('A "name": 1 & 2 # 3')
