"""What the pages for people name exists: files, modules, variables, targets of make."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.torch_mpi4py.torch_suite import CANNOT_PASS

BACKEND = Path("packages/torch_mpi4py")
READMES = (Path("README.md"), BACKEND / "README.md")
ROOT = Path(__file__).resolve().parents[2]
DOCS = tuple(sorted(path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.md")))
OTHERS = (Path("packages/ipyranks/README.md"), Path("tests/README.md"))
PAGES = (
    *(*READMES, *OTHERS, *DOCS),
    *(Path("INSTRUCTOR.md"), Path("CONTRIBUTING.md"), Path("CHANGELOG.md")),
)
LINK = re.compile(r"\]\(([^)\s]+)\)|\b(?:src|srcset)=\"([^\"]+)\"")


def anchors(path: Path) -> set[str]:
    """Return the places in a Markdown file that a link may name, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def links(page: Path) -> list[str]:
    """Return where the links and pictures of a page lead, but for other sites."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    found = (markdown or html for markdown, html in LINK.findall(text))
    return [target for target in found if "://" not in target]


def test_every_page_is_reached_from_the_readme() -> None:
    assert {"benchmark", "failures", "install", "troubleshooting"} <= {page.stem for page in DOCS}
    reached, new = set(), {Path("README.md")}
    while new:
        page = new.pop()
        reached.add(page)
        for target in links(page):
            other = Path(os.path.normpath(page.parent / target.partition("#")[0]))
            if (ROOT / other).is_dir():  # of which GitHub shows the README
                other /= "README.md"
            if other in PAGES and other not in reached:
                new.add(other)
    assert sorted(set(PAGES) - reached) == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_link_targets_exist(root: Path, page: Path) -> None:
    wrong = []
    for target in links(page):
        name, _, anchor = target.partition("#")
        file = (root / page).parent / name if name else root / page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(target)
    assert not wrong


def test_modules_in_the_table_exist(root: Path) -> None:
    table = (
        (root / "docs" / "library.md").read_text().split("| module | purpose |")[1].split("\n\n")[0]
    )
    named = []
    for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE):
        first, *others = re.findall(r"`([\w.]+)`", cell)
        package = first.rpartition(".")[0]
        named += [first, *(f"{package}.{other}" for other in others)]
    assert len(named) > 10
    assert [name for name in named if find_spec(name) is None] == []


def test_backend_variables_are_in_their_table(root: Path) -> None:
    named = re.compile(r"TORCH_MPI4PY_[A-Z_]*[A-Z]")
    sources = (root / BACKEND / "src").rglob("*.py")
    read = {name for path in sources for name in named.findall(path.read_text())}
    assert read == set(named.findall((root / BACKEND / "README.md").read_text()))


def test_backend_readme_lists_pytorch_tests_it_cannot_pass(root: Path) -> None:
    readme = (root / BACKEND / "README.md").read_text()
    assert re.findall(r"^\| `(test_\w+)` \|", readme, re.MULTILINE) == [*CANNOT_PASS]


def test_make_targets_exist(root: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (root / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"(?:^|`)make ([a-z]+)\b", (root / page).read_text(), re.MULTILINE)
        assert named or page not in READMES
        assert set(named) <= targets, page


def test_test_marks_are_in_their_table(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())
    marks = project["tool"]["pytest"]["ini_options"]["markers"]
    table = (root / "tests" / "README.md").read_text().split("## Marks")[1].split("\n## ")[0]
    told = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert told == [mark.partition(":")[0] for mark in marks]


def test_contributing_stays_short(root: Path) -> None:
    assert len((root / "CONTRIBUTING.md").read_text().splitlines()) <= 250


def test_pytest_in_the_backend_s_folder_finds_its_tests(root: Path) -> None:
    """One file is enough: to collect all takes as long as to import PyTorch several times."""
    project = tomllib.loads((root / BACKEND / "pyproject.toml").read_text())
    (folder,) = project["tool"]["pytest"]["ini_options"]["testpaths"]
    assert (root / BACKEND / folder).samefile(root / "tests" / "torch_mpi4py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:nbval"]
    answer = subprocess.run(
        [*command, f"{folder}/test_diagnosis.py"],
        cwd=root / BACKEND,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert " passed" in answer.stdout
