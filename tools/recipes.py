"""Write conda-forge's recipes (format 1) of the three packages, from their pyproject.toml.

Usage: ``python -m tools.recipes DIST FOLDER``, in the release workflow: DIST has the source
archives, which the release page will offer. A recipe names their address, so nothing is written
before that of the repository is filled in.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from . import addresses, release

ROOT = Path(__file__).resolve().parent.parent
# Where conda-forge's name differs from the index's.
CONDA = {"torch": "pytorch", "jupyter-client": "jupyter_client", "matplotlib": "matplotlib-base"}
# The imports that test the built package. Not torch_mpi4py's public names: they start MPI.
IMPORTS = {
    "torch-mpi4py": ["torch_mpi4py", "torch_mpi4py.launch"],
    "ipyranks": ["ipyranks"],
    "rank-by-rank": ["course_lib", "rank_by_rank"],
}


def _requirement(text: str) -> str:
    found = re.fullmatch(r"([\w.-]+)(.*)", text)
    assert found is not None, text
    return f"{CONDA.get(found[1], found[1])} {found[2]}".strip()


def recipe(project: dict[str, Any], source: Path, repository: str, maintainer: str) -> str:
    """Return a recipe: YAML, as JSON is YAML and the strings are quoted that way.

    Args:
        project: the table [project].
        source: its source archive.
        repository: whose release page offers the archive.
        maintainer: a user of GitHub's.
    """
    version = project["version"]
    python = project["requires-python"]
    made = {
        "schema_version": 1,
        "context": {"version": version},
        "package": {"name": project["name"], "version": "${{ version }}"},
        "source": {
            "url": f"{repository}/releases/download/v${{{{ version }}}}/"
            f"{source.name.replace(version, '${{ version }}')}",
            "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        },
        "build": {
            "number": 0,
            "noarch": "python",
            "script": "${{ PYTHON }} -m pip install . -vv --no-deps --no-build-isolation",
            **({"python": {"entry_points": _scripts(project)}} if "scripts" in project else {}),
        },
        "requirements": {
            "host": [f"python {python}", "pip", "setuptools >=77"],
            "run": [f"python {python}", *map(_requirement, project["dependencies"])],
        },
        "tests": [{"python": {"imports": IMPORTS[project["name"]], "pip_check": False}}],
        "about": {
            "summary": project["description"],
            "license": project["license"],
            "license_file": project["license-files"],
            "homepage": repository,
            "repository": repository,
        },
        "extra": {"recipe-maintainers": [maintainer]},
    }
    return "\n".join(_lines(made)) + "\n"


def _scripts(project: dict[str, Any]) -> list[str]:
    return [f"{name} = {function}" for name, function in project["scripts"].items()]


def _lines(value: Any, indent: str = "") -> list[str]:
    """Return a mapping as lines of YAML."""
    lines = []
    for key, inner in value.items():
        if isinstance(inner, dict):
            lines += [f"{indent}{key}:", *_lines(inner, indent + "  ")]
        elif isinstance(inner, list):
            lines.append(f"{indent}{key}:")
            for one in inner:
                if isinstance(one, dict):
                    first, *others = _lines(one, indent + "    ")
                    lines += [f"{indent}  - {first.strip()}", *others]
                else:
                    lines.append(f"{indent}  - {json.dumps(one)}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(inner)}")
    return lines


def main(arguments: list[str] | None = None) -> None:
    """Write FOLDER/NAME.recipe.yaml for each package."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    stated = addresses.stated(given.root)
    if missing := addresses.not_filled(stated):
        sys.exit("; ".join(missing))
    for name in release.PROJECTS:
        project = tomllib.loads((given.root / name).read_text(encoding="utf-8"))["project"]
        stem = f"{project['name'].replace('-', '_')}-{project['version']}"
        owner = stated.repository.split("/")[-2]
        path = given.folder / f"{project['name']}.recipe.yaml"
        text = recipe(project, given.dist / f"{stem}.tar.gz", stated.repository, owner)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
