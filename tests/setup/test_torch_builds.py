"""Without an NVIDIA driver PyTorch's CPU builds are taken, if their index can be had."""

from __future__ import annotations

import functools
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

import pytest

from tests.lab_server import free_port

TORCH, VISION = "2.13.0", "0.28.0"
# Three starts of pip on a machine on which everything else is tested, too.
BUSY_SECONDS = 100.0


@pytest.fixture
def builds(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return tools/torch_builds.py, on a Linux machine without an NVIDIA driver."""
    monkeypatch.syspath_prepend(root / "tools")
    import torch_builds

    monkeypatch.setattr(torch_builds, "has_nvidia_driver", lambda: False)
    monkeypatch.setattr(torch_builds, "ALL_SECONDS", BUSY_SECONDS)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("TORCH_INDEX", "PIP_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return torch_builds


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Return a lock with PyTorch alone."""
    path = tmp_path / "requirements.lock"
    path.write_text(f"torch=={TORCH}\ntorchvision=={VISION}\n")
    return path


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and writes nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """Serve the folder tmp_path/served and return its address."""
    (tmp_path / "served").mkdir()
    handler = functools.partial(Quiet, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def index_of(folder: Path, *wheels: str) -> None:
    """Make an index of wheels that hold nothing, named ``torch-2.13.0+cpu-py3-none-any``."""
    names: dict[str, list[str]] = {}
    for wheel in wheels:
        name, version, _ = wheel.split("-", 2)
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(place / f"{wheel}.whl", "w") as archive:
            about = f"{name}-{version}.dist-info"
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            archive.writestr(f"{about}/METADATA", text)
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{about}/RECORD", "")
        names.setdefault(name, []).append(f"{wheel}.whl")
    for name, files in names.items():
        links = (f'<a href="{quote(file)}">{file}</a>' for file in files)
        (folder / name / "index.html").write_text("\n".join(links))


def would_install(package_index: str, extra: str, lock: Path) -> dict[str, str]:
    """Return what pip would install from the lock, by name."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--no-deps", "--report", "-", "--index-url", package_index, "-r", str(lock)]
    if extra:
        command += ["--extra-index-url", extra]
    said = subprocess.check_output(
        command, env=variables | {"PIP_CONFIG_FILE": os.devnull}, text=True, timeout=120
    )
    found = (item["metadata"] for item in json.loads(said)["install"])
    return {item["name"]: item["version"] for item in found}


def choose(builds: ModuleType, lock: Path, index: str) -> tuple[str, str]:
    """Ask for a choice, which takes no longer than it may."""
    start = time.monotonic()
    choice = builds.choose(Path(sys.executable), lock, index)
    assert time.monotonic() - start < builds.ALL_SECONDS + 5
    return choice


CPU_BUILDS = (f"torch-{TORCH}+cpu-py3-none-any", f"torchvision-{VISION}+cpu-py3-none-any")
CUDA_BUILDS = (f"torch-{TORCH}-py3-none-any", f"torchvision-{VISION}-py3-none-any")


def test_cpu_builds_are_chosen(
    builds: ModuleType, lock: Path, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_of(tmp_path / "served" / "cpu", *CPU_BUILDS)
    index_of(tmp_path / "served" / "all", *CUDA_BUILDS)
    # Somebody's own further index changes nothing.
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{served}/all")
    index, why = choose(builds, lock, f"{served}/cpu")
    assert index == f"{served}/cpu"
    assert "CPU builds" in why
    taken = would_install(f"{served}/all", index, lock)
    assert taken == {"torch": f"{TORCH}+cpu", "torchvision": f"{VISION}+cpu"}


@pytest.mark.parametrize(
    ("wheels", "lacking"),
    [
        ((f"torch-{TORCH}+cpu-cp27-none-any", CPU_BUILDS[1]), f"torch {TORCH}"),
        ((CPU_BUILDS[0], "torchvision-0.28.10+cpu-py3-none-any"), f"torchvision {VISION}"),
        ((CPU_BUILDS[0],), f"torchvision {VISION}"),
    ],
    ids=["another Python", "longer number", "no torchvision"],
)
def test_package_index_is_used_if_cpu_index_lacks_version(
    builds: ModuleType,
    lock: Path,
    served: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wheels: tuple[str, ...],
    lacking: str,
) -> None:
    index_of(tmp_path / "served" / "cpu", *wheels)
    index_of(tmp_path / "served" / "all", *CUDA_BUILDS)
    # What another index has is not taken for what this one has.
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{served}/all")
    index, why = choose(builds, lock, f"{served}/cpu")
    assert index == ""
    assert f"{served}/cpu has no {lacking} for this machine" in why


def test_unreachable_index_is_not_used(
    builds: ModuleType, lock: Path, served: str, tmp_path: Path
) -> None:
    index_of(tmp_path / "served" / "all", *CUDA_BUILDS)
    nowhere = f"http://127.0.0.1:{free_port()}/cpu"
    index, why = choose(builds, lock, nowhere)
    assert index == ""
    assert why.endswith(f"{nowhere} can't be reached")
    assert "\n" not in why
    assert would_install(f"{served}/all", index, lock) == {"torch": TORCH, "torchvision": VISION}


@pytest.mark.parametrize("all_seconds", [20.0, 1.5], ids=["by pip", "altogether"])
def test_unresponsive_index_is_not_used(
    builds: ModuleType, lock: Path, monkeypatch: pytest.MonkeyPatch, all_seconds: float
) -> None:
    monkeypatch.setattr(builds, "ALL_SECONDS", all_seconds)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, says nothing
        index, why = choose(builds, lock, f"http://127.0.0.1:{silent.getsockname()[1]}/cpu")
    assert index == ""
    assert "can't be reached" in why or f"doesn't answer in {all_seconds:g} s" in why


@pytest.mark.parametrize(
    ("asked", "index"), [("http://mirror/cpu", "http://mirror/cpu"), ("none", "")]
)
def test_torch_index_takes_precedence(
    builds: ModuleType, lock: Path, monkeypatch: pytest.MonkeyPatch, asked: str, index: str
) -> None:
    monkeypatch.setattr(builds, "ask_pip", None)  # nobody is asked
    monkeypatch.setenv("TORCH_INDEX", asked)
    assert choose(builds, lock, "http://unused") == (index, "")


@pytest.mark.parametrize("variable", ["PIP_INDEX_URL", "PIP_NO_INDEX"])
def test_configured_index_is_the_only_one_used(
    builds: ModuleType,
    lock: Path,
    served: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    index_of(tmp_path / "served" / "cpu", *CPU_BUILDS)
    monkeypatch.setenv(variable, "1" if variable == "PIP_NO_INDEX" else f"{served}/mirror")
    index, why = choose(builds, lock, f"{served}/cpu")
    assert index == ""
    assert "pip is told where to look" in why


@pytest.mark.parametrize(("platform", "driver"), [("linux", True), ("darwin", False)])
def test_no_index_is_queried_with_a_driver_or_on_macos(
    builds: ModuleType,
    lock: Path,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    driver: bool,
) -> None:
    monkeypatch.setattr(builds, "ask_pip", None)
    monkeypatch.setattr(builds, "has_nvidia_driver", lambda: driver)
    monkeypatch.setattr(sys, "platform", platform)
    assert choose(builds, lock, "http://unused") == ("", "")


def test_nvidia_driver_is_detected(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(root / "tools")
    import torch_builds

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch_builds, "SIGNS_OF_A_DRIVER", (str(tmp_path / "version"),))
    assert not torch_builds.has_nvidia_driver()
    (tmp_path / "version").write_text("")
    assert torch_builds.has_nvidia_driver()
    (tmp_path / "version").unlink()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert torch_builds.has_nvidia_driver()


def test_make_passes_the_index_to_pip(
    builds: ModuleType,
    lock: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import install

    monkeypatch.setattr(install, "ROOT", lock.parent)
    monkeypatch.setattr(install, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(builds, "choose", lambda *_: builds.Choice("http://cpu", "because"))
    packages = tmp_path / ".venv" / "lib" / "python3.12" / "site-packages"
    (packages / f"torch-{TORCH}+cpu.dist-info").mkdir(parents=True)
    (packages / "torchvision-0.28.10.dist-info").mkdir()
    assert install.torch_arguments() == ["--extra-index-url", "http://cpu"]
    assert capsys.readouterr().out == "  because\n"

    # What is there already is not looked for again, unless somebody asks for another.
    (packages / f"torchvision-{VISION}.dist-info").mkdir()
    assert install.torch_arguments() == []
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("TORCH_INDEX", "http://mirror")
    assert install.torch_arguments() == ["--extra-index-url", "http://cpu"]
