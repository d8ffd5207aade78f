"""make lab: JupyterLab at a path with a space, for this machine only, with a token, twice."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from tests.lab_server import LabServer, copy_checkout, copy_venv, make_lab, scratch

# 2 to 4 s on two quiet cores; this machine may be far slower for moments. Installing anew what is
# installed already would take minutes.
SECOND_START_SECONDS = 60


@pytest.fixture(scope="module")
def checkout() -> Iterator[Path]:
    """Give a copy of the checkout, with .venv, at a path with a space."""
    with scratch() as folder:
        copy = folder / "my course"
        copy.mkdir()
        copy_checkout(copy)
        copy_venv(copy)
        yield copy


def opened_address(lab: LabServer) -> str:
    """Return where the printed address leads a browser that has the token."""
    answer = requests.get(lab.url, timeout=60)
    assert answer.status_code == 200
    assert "JupyterLab" in answer.text
    return answer.url


@pytest.mark.timeout(600)
def test_make_lab_runs_twice_and_without_a_home(checkout: Path) -> None:
    # Not even root can write to a home that is a file, nor make it.
    home = checkout.parent / "home"
    home.write_text("")
    homeless = {"HOME": str(home)}
    with make_lab(checkout, homeless, seconds=90) as lab:
        assert "/lab/tree/workspace/00_start_here.ipynb" in opened_address(lab)
        assert (checkout / "workspace" / "00_start_here.ipynb").is_file()
        assert (checkout / ".runtime" / "jupyter").is_dir()

        # Nobody gets in without the token, or from another machine.
        api = f"http://127.0.0.1:{lab.port}/api/contents"
        assert requests.get(api, timeout=60).status_code == 403
        assert requests.get(api, params={"token": lab.token}, timeout=60).status_code == 200
        listening = set()
        for process in lab.processes():
            # A short-lived child; one that has just ended denies access, except to root.
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                listening |= {
                    connection.laddr.ip
                    for connection in process.net_connections(kind="tcp")
                    if connection.status == psutil.CONN_LISTEN
                }
        assert listening == {"127.0.0.1"}

    work = checkout / "workspace" / "00_start_here.ipynb"
    work.write_text(work.read_text().replace('"cells": [', '"cells":  ['))
    changed = work.read_bytes()
    with make_lab(checkout, homeless, seconds=90) as lab:
        assert lab.seconds <= SECOND_START_SECONDS
        opened_address(lab)
    assert work.read_bytes() == changed


def test_jupyterlab_arguments_can_be_overridden(checkout: Path, tmp_path: Path) -> None:
    """The container must be reachable from other hosts, and the image is read-only."""
    command = [checkout / ".venv/bin/python", "-m", "course_lib.command", "lab"]
    command += ["--show-config-json", "--ip=127.0.0.2", f"--ServerApp.root_dir={tmp_path}"]
    done = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, timeout=120, check=True)
    said = b"\n" + done.stdout  # lines about new copies of lessons may come first
    config = json.loads(said[said.index(b"\n{") :])
    assert config["ServerApp"]["ip"] == "127.0.0.2"
    assert config["ServerApp"]["root_dir"] == str(tmp_path)
    assert config["LabApp"]["extension_manager"] == "readonly"
