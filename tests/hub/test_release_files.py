"""What a release uploads: built as the workflow does, looked at by twine and rattler-build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hub.test_wheels_alone import python_with
from tests.lab_server import copy_checkout
from tests.setup.test_release import fill_in
from tests.setup.test_wheels import outside
from tools import addresses, package_pages, recipes, release

pytestmark = [pytest.mark.hub, pytest.mark.timeout(600)]

TOOLS = ("build==1.6.1", "twine==7.0.0", "py-rattler-build==0.73.0")  # build, twine as release.yml
PARSED = """
import sys
from pathlib import Path
from rattler_build.stage0 import Stage0Recipe
for path in sys.argv[1:]:
    recipe = Stage0Recipe.from_yaml(Path(path).read_text())
    (variant,) = recipe.render()
    print(variant.recipe.package.name, variant.recipe.package.version)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that runs this Python with the tools, and returns what it prints."""
    folder = tmp_path_factory.mktemp("tools")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", folder, *TOOLS], check=True, timeout=300)

    def run(*arguments: str | Path, cwd: Path) -> str:
        answer = subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    return run


@pytest.fixture(scope="module")
def dist(python, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the archives and of the wheels, which are built from them."""
    checkout = tmp_path_factory.mktemp("checkout")
    copy_checkout(checkout)
    fill_in(checkout)
    addresses.main(["--root", str(checkout)])
    package_pages.main(["--root", str(checkout)])
    for project in release.PROJECTS:
        place = str(Path(project).parent)
        python("-m", "build", "--no-isolation", "--outdir", "dist", place, cwd=checkout)
    return checkout / "dist"


def test_twine_accepts_all(python, dist: Path) -> None:
    files = sorted(dist.iterdir())
    assert len(files) == 6
    said = python("-m", "twine", "check", "--strict", *files, cwd=dist)
    assert said.count("PASSED") == 6, said


def test_the_wheels_of_the_archives_work_in_an_empty_environment(
    dist: Path, tmp_path: Path
) -> None:
    there = python_with(sorted(dist.glob("*.whl")), tmp_path / "venv")
    said = subprocess.run(
        [there, "-m", "course_lib.command", "--help"],
        cwd=tmp_path,
        env=outside({"HOME": str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert "doctor" in said


def test_rattler_build_accepts_the_recipes(python, dist: Path, tmp_path: Path) -> None:
    recipes.main(["--root", str(dist.parent), str(dist), str(tmp_path)])
    files = sorted(tmp_path.glob("*.recipe.yaml"))
    said = python("-c", PARSED, *files, cwd=tmp_path).split()
    version = release.versions(dist.parent)["pyproject.toml"]
    assert said == ["ipyranks", version, "rank-by-rank", version, "torch-mpi4py", version]
