"""The teacher's configuration of JupyterHub, as JupyterHub reads it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.hub.hub import INSTALL_SECONDS, install

pytestmark = [pytest.mark.hub, pytest.mark.timeout(INSTALL_SECONDS + 120)]


def read(root: Path, state: Path, where: str) -> subprocess.CompletedProcess[str]:
    """Have JupyterHub read the configuration and show it."""
    install()
    command = [root / "hub/.venv/bin/python", "-m", "jupyterhub", "--show-config-json"]
    return subprocess.run(
        [*command, "-f", root / "hub/jupyterhub_config.py"],
        cwd=state,
        env=os.environ | {"COURSE_HUB_STATE": str(state), "COURSE_HUB_SPAWNER": where},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("where", "spawner", "hub_listens"),
    [
        ("systemd", "systemd", "http://127.0.0.1:8081"),
        ("slurm", "batchspawner.SlurmSpawner", "http://0.0.0.0:8081"),
    ],
)
def test_each_user_has_limits(
    root: Path, tmp_path: Path, where: str, spawner: str, hub_listens: str
) -> None:
    answer = read(root, tmp_path, where)
    assert answer.returncode == 0, answer.stderr
    config = json.loads(answer.stdout)
    assert config["JupyterHub"]["spawner_class"] == spawner
    assert config["JupyterHub"]["bind_url"] == "http://127.0.0.1:8000"
    assert config["JupyterHub"]["hub_bind_url"] == hub_listens
    assert config["Spawner"]["mem_limit"] == "3G"
    assert config["Spawner"]["environment"]["COURSE_OFFLINE"] == "1"
    assert all(Path(word).is_file() for word in shlex.split(" ".join(config["Spawner"]["cmd"])))


def test_unknown_place_error_is_one_sentence(root: Path, tmp_path: Path) -> None:
    answer = read(root, tmp_path, "moon")
    assert answer.returncode == 1
    assert "it may be 'systemd' or 'slurm'" in answer.stderr
