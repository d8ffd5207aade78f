"""The scripts run as their docstrings say, and the same training ends with the same weights."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch_mpi4py import launch

from course_lib.parallel import launching
from tests import ranks

MODELS_IN_PARTS = ("pipeline", "tensor_parallel", "fsdp", "experts")
SCRIPTS = ("send_recv", "all_reduce", "sync_sgd", "ddp", *MODELS_IN_PARTS)
TOGETHER = os.path.join("tests", "scripts", "one_after_another.py")
LIMIT = 150
Program = tuple[str, tuple[object, ...]]
"""A script's name and its options."""
STEPS = 12
# Rounding in float32 is 6e-8 relative; after 12 steps weights of about 0.1 differ by some 1e-7,
# and by 2e-5 on processors where it decides which of two pixels a pooling layer takes. One sample
# of twelve left out of every step changes each tensor by 5e-4 or more, and some weight by 1e-2.
TOLERANCE = 2e-4


def script(name: str) -> str:
    return os.path.join("scripts", f"{name}.py")


def result(output: str) -> dict:
    """Return the result that the last line of a program's output gives."""
    return json.loads(output.strip().splitlines()[-1])


def by_mpiexec(n: int, name: str, *options: object) -> dict:
    (found,) = together_by_mpiexec(n, [(name, options)])
    return found


def together_by_mpiexec(n: int, programs: Sequence[Program]) -> list[dict]:
    """Return the results of scripts that the same ranks run one after another."""
    ended = ranks.run(n, *map(str, together(programs)), limit=LIMIT)
    assert ended.returncode == 0, ended.output
    assert not ended.left_behind
    return results(ended.output, len(programs))


def alone(root: Path, programs: Sequence[Program]) -> list[dict]:
    """Return the results of scripts that one process runs one after another."""
    ended = python(root, *together(programs))
    assert ended.returncode == 0, ended.stderr
    return results(ended.stdout, len(programs))


def results(output: str, number: int) -> list[dict]:
    """Return what the lines of an output give: one result a script, no bar without a person."""
    lines = output.strip().splitlines()
    assert len(lines) == number, output
    return [json.loads(line) for line in lines]


def together(programs: Sequence[Program]) -> list[object]:
    """Return the arguments of Python that run these scripts, each with its options."""
    if len(programs) == 1:
        ((name, options),) = programs
        return [script(name), *options]
    argv: list[object] = [TOGETHER]
    for name, options in programs:
        argv += [script(name), *options, "--"]
    return argv


def python(root: Path, *argv: object) -> subprocess.CompletedProcess:
    environment = launch.environment()
    environment.pop("COURSE_DATA", None)
    return subprocess.run(
        [sys.executable, *map(str, argv)],
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def by_torchrun(root: Path, n: int, name: str, *options: object) -> dict:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n)
    ended = python(root, *torchrun, script(name), *options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return result(ended.stdout)


@pytest.fixture(autouse=True)
def digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on the digits, whatever data sets this machine has."""
    monkeypatch.delenv("COURSE_DATA", raising=False)


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_shows_the_start_command(root: Path, name: str) -> None:
    ended = python(root, script(name), "--help")
    assert ended.returncode == 0, ended.stderr
    assert f"mpiexec -n 4 python scripts/{name}.py" in ended.stdout
    assert "torchrun --nproc-per-node 2" in ended.stdout
    assert "--progress" in ended.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_short(root: Path, name: str) -> None:
    assert len((root / script(name)).read_text().splitlines()) < 120


def test_send_recv() -> None:
    found = by_mpiexec(3, "send_recv", "--rounds", 3)
    assert (found["ranks"], found["value"], found["elements"]) == (3, 3, 2)
    assert found["backend"] == "mpi4py"


def test_send_recv_by_torchrun(root: Path) -> None:
    found = by_torchrun(root, 2, "send_recv", "--elements", 1000, "--rounds", 2)
    assert (found["ranks"], found["value"], found["elements"]) == (2, 2, 1000)


def test_send_recv_rejects_a_ring_of_one(root: Path) -> None:
    ended = python(root, script("send_recv"))
    assert ended.returncode == 2
    assert "a ring needs at least 2 ranks: mpiexec -n 2" in ended.stderr


def test_all_reduce() -> None:
    found = by_mpiexec(3, "all_reduce", "--largest", 4096, "--repeat", 3)
    assert found["sum"] == 1 + 2 + 3
    assert list(found["microseconds"]) == ["4", "64", "1024"]
    assert min(found["microseconds"].values()) > 0


def test_all_reduce_by_torchrun(root: Path) -> None:
    found = by_torchrun(root, 2, "all_reduce", "--largest", 64, "--repeat", 2)
    assert found["sum"] == 3
    if not torch.cuda.is_available():
        assert found["backend"] == "gloo"


@pytest.mark.timeout(620)  # three starts
@pytest.mark.skipif(torch.cuda.is_available(), reason="sums differ between CPU and GPU")
def test_same_training_is_bitwise_equal_on_two_ranks(root: Path) -> None:
    """Sums of two terms do not depend on their order, so nothing may differ at all."""
    options = ("--steps", STEPS, "--batch", 8)
    names = ("sync_sgd", "ddp")
    by_mpi = together_by_mpiexec(2, [(name, options) for name in names])
    by_gloo = [by_torchrun(root, 2, name, *options) for name in names]
    for backend, trained in (("mpi4py", by_mpi), ("gloo", by_gloo)):
        for name, values in zip(names, trained, strict=True):
            assert (values["script"], values["backend"]) == (name, backend)
            assert (values["data"], values["steps"], values["ranks"]) == ("digits", STEPS, 2)
            assert values["samples_per_s"] > 0
    assert len({outcome(values) for values in by_mpi + by_gloo}) == 1, (by_mpi, by_gloo)


def outcome(values: dict) -> tuple:
    """Return what the same training always ends with."""
    return values["checksum"], values["loss"], values["accuracy"]


@pytest.mark.timeout(320)
def test_three_ranks_equal_one_process_up_to_rounding(root: Path, tmp_path: Path) -> None:
    """Three terms may be added in any order."""
    files = {name: tmp_path / f"{name}.pt" for name in ("sync_sgd", "ddp", "one")}
    options = ("--steps", STEPS, "--batch", 4, "--save")
    together_by_mpiexec(3, [(name, (*options, files[name])) for name in ("sync_sgd", "ddp")])
    options = ("--steps", STEPS, "--batch", 12, "--save", files["one"])
    (one,) = alone(root, [("sync_sgd", options)])
    assert one["ranks"] == 1
    weights = {name: torch.load(file, weights_only=True) for name, file in files.items()}
    for name in ("sync_sgd", "ddp"):
        assert_close(weights[name], weights["one"])


def assert_close(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Raise AssertionError unless all weights are equal up to rounding."""
    assert weights.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(weights[key], tensor, rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def trained_in_parts(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    """Return, for each model in parts, what one process, two and four ranks made of it."""
    folder = tmp_path_factory.mktemp("parts")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COURSE_DATA", raising=False)  # see digits
        found: dict[str, list[dict]] = {name: [] for name in MODELS_IN_PARTS}
        for n in (1, 2, 4):
            options = ("--steps", STEPS, "--batch", 16 // n, "--save")
            files = {name: folder / f"{name}_{n}.pt" for name in MODELS_IN_PARTS}
            programs = [(name, (*options, file)) for name, file in files.items()]
            trained = together_by_mpiexec(n, programs) if n > 1 else alone(root, programs)
            for name, values in zip(MODELS_IN_PARTS, trained, strict=True):
                weights = torch.load(files[name], weights_only=True)
                found[name].append(values | {"weights": weights})
    return found


@pytest.mark.timeout(620)  # four starts
@pytest.mark.skipif(torch.cuda.is_available(), reason="sums differ between CPU and GPU")
@pytest.mark.parametrize("name", MODELS_IN_PARTS)
def test_split_model_trains_like_whole_model(
    root: Path, trained_in_parts: dict[str, list[dict]], name: str
) -> None:
    """Two ranks to the same bits under both launchers; four and one up to rounding."""
    one, two, four = trained_in_parts[name]
    by_gloo = by_torchrun(root, 2, name, "--steps", STEPS, "--batch", 8)
    assert (two["backend"], by_gloo["backend"]) == ("mpi4py", "gloo")
    assert (two["script"], two["steps"], two["ranks"]) == (name, STEPS, 2)
    assert outcome(two) == outcome(by_gloo)
    assert (one["ranks"], four["ranks"]) == (1, 4)
    for values in (two, four):
        assert_close(values["weights"], one["weights"])


def test_experts_rejects_an_indivisible_number() -> None:
    ended = ranks.run(2, script("experts"), "--experts", "3", limit=LIMIT)
    assert ended.returncode not in (0, None), ended.output
    assert "--experts 3: it must divide 8 experts and 2 ranks" in ended.output


@pytest.mark.timeout(470)
def test_different_seeds_and_epochs_give_different_weights(root: Path) -> None:
    """So that equal checksums mean something. 44 steps of 32 samples are an epoch."""
    runs = [("--seed", 0, "--steps", 45), ("--seed", 1, "--steps", 45), ("--seed", 0)]
    sums = alone(root, [("ddp", ("--batch", 32, "--epochs", 2, *options)) for options in runs])
    assert len({found["checksum"] for found in sums}) == 3
    assert [found["steps"] for found in sums] == [45, 45, 88]
    assert sums[2]["accuracy"] > 0.3  # 0.1 is chance


def test_progress_bar_is_shown_by_rank_0_only() -> None:
    shown = ranks.run(2, script("ddp"), "--steps", "3", "--progress", limit=LIMIT)
    assert shown.output.count("| 0/3") == 1, shown.output
    # The bar goes to stderr: its last line may come after the result, or before it on one line.
    assert json.loads(re.findall(r"\{.*\}", shown.output)[-1])["steps"] == 3


@pytest.mark.parametrize(
    "options", [("--batch", 0), ("--epochs", 0), ("--steps", -1), ("--seed", -1)], ids=str
)
def test_invalid_options_are_rejected(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, int],
) -> None:
    """By the parser that sync_sgd and ddp share."""
    monkeypatch.syspath_prepend(root / "scripts")
    monkeypatch.setattr(sys, "argv", ["sync_sgd.py", *map(str, options)])
    from training_options import parse

    with pytest.raises(SystemExit, match="2"):
        parse("What the script does.")
    assert "must be at least" in capsys.readouterr().err


def test_batch_larger_than_the_data_is_rejected(root: Path) -> None:
    ended = python(root, script("ddp"), "--batch", 5000)
    assert ended.returncode != 0
    assert "fewer than one batch" in ended.stderr


def test_launcher_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", *launching._MPIEXEC):
        monkeypatch.delenv(name, raising=False)
    assert launching.launcher() == "none"
    monkeypatch.setenv("PMI_RANK", "0")
    assert launching.launcher() == "mpiexec"
    # torchrun inside of an MPI job, from a notebook's engine say: its ranks are no MPI ranks.
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    assert launching.launcher() == "torchrun"


def test_torchrun_ranks_import_no_mpi(root: Path) -> None:
    program = (
        "import sys, runpy; sys.argv = ['x', '--steps', '1'];"
        "runpy.run_path('scripts/sync_sgd.py', run_name='__main__');"
        "sys.exit('mpi4py' in sys.modules or 'torch_mpi4py.core.runtime' in sys.modules)"
    )
    ended = python(root, "-c", f"import sys; sys.path.insert(0, 'scripts'); {program}")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to see threads")
def test_gloo_threads_end_between_program_and_interpreter(root: Path) -> None:
    """Earlier, at the deletion of DDP's model, some runs hang; later some abort."""
    program = """
import atexit, contextlib, pathlib, time, torch

def threads():
    names = []
    for path in pathlib.Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            names.append(path.read_text())
    return sum("gloo" in name for name in names)

def last_look():
    until = time.monotonic() + 30  # a thread that was joined is listed a moment longer
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    print("before Python ends:", threads())

atexit.register(last_look)
from course_lib.parallel.launching import process_group

def main():
    with process_group():
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()

main()
print("after the program:", threads())
"""
    ended = python(root, "-c", program)
    assert ended.returncode == 0, ended.stderr
    after, before = (int(line.rpartition(": ")[2]) for line in ended.stdout.splitlines())
    assert after > 0
    assert before == 0


def test_failing_rank_ends_the_run(root: Path) -> None:
    """One rank cannot write; the others do not wait until the deadline of 60 s."""
    ended = ranks.run(
        2, script("sync_sgd"), "--steps", "2", "--save", "missing/folder/x.pt", limit=60
    )
    assert ended.returncode not in (0, None), ended.output
    assert "missing/folder" in ended.output
