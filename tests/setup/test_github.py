"""What GitHub reads is well-formed, pins what it runs, and names what is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted({*(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")} - {CONFIG})
KINDS = {"input", "textarea", "dropdown", "checkboxes", "markdown"}


def triggers(workflow: dict) -> dict:
    return workflow[True]  # YAML reads "on" as true


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_is_read_only_and_pins_its_actions(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert "timeout-minutes" in job or "uses" in job, f"{name} has no time limit"
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    for action in used:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+|\./\.github/.*", action), action


def test_each_action_has_one_version(root: Path) -> None:
    used = set(re.findall(r"uses: ([\w/-]+)@(.*)", "".join(path.read_text() for path in WORKFLOWS)))
    assert len(used) == len({name for name, _ in used}), sorted(used)


def test_no_commit_is_tested_twice(root: Path) -> None:
    workflow = yaml.safe_load((root / ".github" / "workflows" / "test.yml").read_text())
    assert triggers(workflow)["push"] == {"branches": ["main"]}
    assert "pull_request" in triggers(workflow)
    assert "pull_request" in workflow["concurrency"]["cancel-in-progress"]


def test_every_supported_python_is_tested(root: Path) -> None:
    workflow = yaml.safe_load((root / ".github" / "workflows" / "test.yml").read_text())
    tested = {row["python"] for row in workflow["jobs"]["test"]["strategy"]["matrix"]["include"]}
    (least, below) = re.search(
        r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (root / "pyproject.toml").read_text()
    ).groups()
    assert tested == {f"3.{minor}" for minor in range(int(least), int(below))}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_issue_form_is_valid(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    assert {field["type"] for field in form["body"]} <= KINDS
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    for field in form["body"]:
        assert field["attributes"]["label"]
        assert field["type"] != "dropdown" or len(field["attributes"]["options"]) > 1


def test_issue_forms_have_the_expected_names() -> None:
    assert [path.stem for path in FORMS] == ["gpu_report", "installation", "misjudged_answer"]


def test_dependabot_covers_all_pinned_dependencies(root: Path) -> None:
    described = yaml.safe_load((root / ".github" / "dependabot.yml").read_text())
    for update in described["updates"]:
        for folder in update.get("directories", []):
            assert (root / folder.lstrip("/") / "package-lock.json").is_file(), folder


def test_the_container_opens_on_lesson_00(root: Path) -> None:
    text = (root / ".devcontainer" / "devcontainer.json").read_text()
    described = json.loads(re.sub(r"^//.*$", "", text, flags=re.MULTILINE))
    (first,) = described["customizations"]["codespaces"]["openFiles"]
    assert first == "workspace/00_start_here.ipynb"
    assert (root / "notebooks" / Path(first).name).is_file()
    assert described["onCreateCommand"].startswith("make setup && .venv/bin/python -m course_lib.")
