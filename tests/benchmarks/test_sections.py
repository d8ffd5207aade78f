"""The section of each program tells a miss from a hit, and names the cause."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from benchmarks import (
    async_sgd,
    bucketed_sync,
    busy,
    crowd,
    engines,
    failures,
    gpu,
    hosts,
    lab,
    report,
    single_calls,
    throughput,
)
from benchmarks.__main__ import PROGRAMS, keep, measure_into, tables, targets_of


def four(value: float) -> list[float]:
    return [value] * 4


def times(**seconds: float) -> dict:
    return {name: four(value) for name, value in seconds.items()}


def bucketed(sync: float) -> dict:
    row = {"model": "MLP", "parameters": 7, "tensors": 2, "buckets": 1}
    return {"ranks": 2, "batch": 32, "models": [row | {"samples": times(sync=sync, ddp=1e-3)}]}


def event(seconds: float) -> dict:
    alone, operation = times(event=seconds, section=2e-6), times(on=2e-5, off=1.8e-5)
    return {"ranks": 2, "alone": alone, "all_reduce": operation}


def cold(ours: float) -> dict:
    row = {"bytes": 4, "samples": times(ours=ours, raw=1e-6)}
    large = {"bytes": 2**20, "samples": times(ours=1.1e-4, raw=1e-4)}
    return {"ranks": 2, "images": 64, "turns": [row, large], "step": [row]}


def cells(cell: float, start: float = 7.0) -> dict:
    both = {"nothing": times(ours=cell, plain=1e-2)}
    return {"ranks": 4, "cells": both, "starts": times(ours=start, plain=9.0)}


def failed(seconds: float) -> dict:
    hangs = [{"report": seconds, "next": seconds}] * 2
    kills = {"death": [seconds] * 2, "restart": [3 * seconds] * 2}
    alone = {"ranks": 5, "seconds": [seconds] * 3}
    return {"ranks": 4, "limit": hangs, "deadline": hangs, "alone": alone, **kills}


def on_hosts(ours: float, start: float = 7.0) -> dict:
    row = {"bytes": 2**20, "samples": times(ours=ours, gloo=2e-3, least=1.07e-3, raw=1e-3)}
    step = {"model": "MLP", "samples": times(ours=ours, gloo=2e-3, silent=1e-3)}
    run = {"all_reduce": [row], "ddp_step": [step]}
    starts = {"one host": [6.0] * 2, "two hosts": [start] * 2}
    runs = {"one host": run, "two hosts": run}
    return {"runs": runs, "starts": starts, "reports": four(1.2), "idle": 0.003}


def trained(sync: float, ddp: float = 2.0) -> dict:
    """Return turns in which one process slows down and the others with it."""
    one = [400.0, 300.0, 200.0, 100.0]
    factors = {"one": 1.0, "apart": 1.9, "sync": sync, "ddp": ddp}
    samples = {name: [factor * rate for rate in one] for name, factor in factors.items()}
    slower = {name: [rate / 2 for rate in rates] for name, rates in samples.items()}
    slower["sync"], slower["ddp"] = slower["one"], [1.8 * rate for rate in slower["one"]]
    batches = [{"batch": 256, "samples": samples}, {"batch": 64, "samples": slower}]
    return {"ranks": 2, "data": "digits", "batches": batches}


def straggled(synchronous: list, asynchronous: list) -> dict:
    """Return runs with these seconds to the target."""

    def runs(times: list, rate: float) -> list[dict]:
        rest = {"updates_per_s": rate, "gradients_per_s": rate, "staleness": 2.5}
        return [{"seconds": seconds, **rest} for seconds in times]

    modes = {"synchronous": runs(synchronous, 60.0), "asynchronous": runs(asynchronous, 150.0)}
    return {"ranks": 5, "runs": modes}


def waiting(ours: float, share: float = 0.01, back: float = 9e-5, step: float = 0.009) -> dict:
    """Return samples beside busy loops: gloo's median is 2 s, its mean 3 s."""
    samples = {"ours": [ours] * 3, "gloo": [1.0, 2.0, 6.0], "raw": [1.0] * 3}
    waits = {"ours": {"recv": share, "barrier": 0.0}, "gloo": {"recv": 0.005, "barrier": 0.0}}
    loops = {
        "sessions": "sessions of their own",
        "all_reduce": [{"bytes": 4, "samples": samples}],
        "ddp_step": [{"model": "MLP", "samples": times(ours=step, gloo=0.01)}],
    }
    wakes = times(ours=back, gloo=3e-4)
    return {"ranks": 2, "count": 2, "loops": [loops], "waits": waits, "wakes": wakes}


def in_a_room(beside: float) -> dict:
    samples = times(alone=0.2, beside=beside)
    return {"ranks": 4, "notebooks": 10, "cells": [{"cell": "training", "samples": samples}]}


THREE = [3.0, 4.5, 1.5]


@pytest.mark.parametrize(
    ("section", "good", "bad", "said"),
    [
        (bucketed_sync.section, bucketed(1.04e-3), bucketed(1.2e-3), "200 us a step"),
        (single_calls.cold_section, cold(1.5e-5), cold(1.7e-5), "+16.0 us, target <= +15 us"),
        (single_calls.event_section, event(1.9e-6), event(2.1e-6), "2.10 us"),
        (engines.section, cells(1.1e-2, 4.4), cells(1.3e-2, 4.4), "+3.0 ms a cell"),
        (engines.section, cells(1e-2, 4.4), cells(1e-2, 4.6), "take 9.0 s here"),
        (failures.section, failed(0.19), failed(1.1), "took 1.10, 1.10 s"),
        (hosts.section, on_hosts(1.1e-3), on_hosts(1.2e-3), "took 1.07x as long as raw MPI"),
        (hosts.section, on_hosts(1.1e-3), on_hosts(2.1e-3), "0.95x (1 MiB), target > 1x"),
        (hosts.section, on_hosts(1.1e-3), on_hosts(1.1e-3, 9.0), "takes 6.0 s here"),
        (busy.section, waiting(1.9), waiting(2.1), "by the median: 0.95x (4 B), target >= 1x"),
        (busy.section, waiting(1.9), waiting(3.1), "by the mean: 0.97x (4 B), target >= 1x"),
        (busy.section, waiting(1.9), waiting(1.9, step=0.02), "0.50x (MLP), target >= 1x"),
        (busy.section, waiting(1.9), waiting(1.9, share=0.14), "14.00%, target <= 2%. With gloo"),
        (busy.section, waiting(1.9), waiting(1.9, back=2e-4), "With gloo it takes 300 us"),
        (crowd.section, in_a_room(0.25), in_a_room(0.27), "1.35x, target <= 1.3x. 30 ranks wait"),
        (lab.section, {"warm": [2.0, 3.0]}, {"warm": [3.5, 4.0]}, "JupyterLab's own"),
        (
            async_sgd.section,
            straggled(THREE, [2.0, 3.0, 1.0]),
            straggled(THREE, [2.1, 3.1, 1.1]),
            "2.5 times as many gradients",
        ),
    ],
)
def test_targets_are_met_or_missed_with_their_cause(section, good, bad, said):
    assert all(row.met for row in section(good).targets)
    text = "\n".join(report.target_table(section(bad).targets))
    assert "Missed:" in text
    assert said in text


def test_busy_section_shows_median_mean_and_wait_share():
    text = tables([busy.section(waiting(1.9))])
    assert "| 4 B | 1,900,000 | 2,000,000 | 1,000,000 | 1,900,000 | 3,000,000 | 1,000,000 |" in text
    assert "| recv | 1.00% | 0.50% |" in text
    assert "| 90 (90 to 90) | 300 (300 to 300) |" in text


def test_busy_loops_end_with_the_process_that_started_them(root):
    program = (
        "import os, psutil, sys, time\n"
        "from benchmarks.busy import busy_loops\n"
        "with busy_loops(True):\n"
        "    print(*(loop.pid for loop in psutil.Process().children()), flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, text=True) as process:
        loops = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        assert len(loops) == os.cpu_count()
        process.kill()  # so that it can't end them itself
    _, alive = psutil.wait_procs(loops, timeout=60)
    for loop in alive:
        loop.kill()
    assert not alive


def test_event_log_section_explains_each_number():
    text = tables([single_calls.event_section(event(1e-6))])
    for row in ("one event", "one section", "all_reduce of 4 B, log on", "their difference"):
        assert f"| {row}" in text
    assert "- One section: an event, its name, and the context manager" in text
    assert "- The difference between an all_reduce with the log on and one with it off" in text


def test_rare_measurements_show_their_date_or_count_as_missing():
    assert [row.met for row in lab.rare_section(None).targets] == [False, False]
    kept = {"date": "2026-01-02", "lessons": {"00_a": 100.0, "01_b": 200.0}, "fresh": 50.0}
    section = lab.rare_section(kept)
    assert [row.measured for row in section.targets] == ["5.0 min", "50 s"]
    assert [row.met for row in section.targets] == [True, True]
    assert "on 2026-01-02" in tables([section])


def test_launchers_section_has_a_table_without_targets():
    runs = {
        name: [{"checksum": "1", "samples_per_s": rate, "whole_seconds": 5.0}] * 2
        for name, rate in (("mpiexec", 300.0), ("torchrun", 200.0))
    }
    launched = throughput.launchers_section({"ranks": 2, "steps": 9, "runs": runs})
    assert "1.50 times" in tables([launched])
    assert "are exactly equal" in tables([launched])
    assert targets_of([launched]) == []


def test_unavailable_hosts_are_reported():
    section = hosts.section({"missing": "it takes root"})
    assert "Not measured here: it takes root." in section.parts
    assert not section.targets


def test_gpu_or_its_absence_is_reported():
    assert "no GPU" in tables([gpu.section({"device": None})])
    rows = [{"bytes": 4, "samples": times(ours=4e-5, copy=1e-5, nccl=2e-5)}]
    runs = [{"ranks": 1, "all_reduce": rows}]
    text = tables([gpu.section({"device": "G1", "runs": runs})])
    assert text.startswith("## GPU\n\nG1:")
    assert "| 25% |" in text


def test_asynchronous_run_missing_its_target_does_not_win() -> None:
    assert async_sgd.sooner(straggled([3.0, 3.0, 3.0], [None, None, 1.0])) == 0
    assert async_sgd.sooner(straggled([None, None, 3.0], [1.0, 1.0, 1.0])) == float("inf")


def test_straggler_section_states_what_is_simulated() -> None:
    text = tables([async_sgd.section(straggled([3.0, 3.0, 3.0], [1.0, 1.0, 1.0]))])
    assert "| asynchronous | 1.00 (1.00 to 1.00) | 150 | 150 | 2.5 |" in text
    assert "at least 20 ms, or 60 ms on one worker" in text


def test_throughput_is_compared_with_independent_processes() -> None:
    found = throughput.ranks_section(trained(sync=1.81)).targets
    assert [target.met for target in found[:2]] == [True, True]
    found = throughput.ranks_section(trained(sync=1.7)).targets
    assert [target.met for target in found[:2]] == [False, True]
    assert (found[0].wanted, found[0].measured) == (">= 0.95x", "0.89x")
    reached = "two ranks reach 1.70x the speed of one process, and two independent processes 1.90x"
    assert reached in found[0].cause


def test_every_batch_size_has_its_own_rows_and_cause():
    section = throughput.ranks_section(trained(sync=1.5))
    assert "| 256 | two ranks, sync_gradients | 375 (188 to 562) | 1.50x |" in tables([section])
    assert "| 64 | two ranks, sync_gradients | 125 (62 to 188) | 1.00x |" in tables([section])
    whats = [target.what for target in section.targets]
    assert [what.split(",")[1] for what in whats] == [" 256 images a step"] * 2 + [
        " 64 images a step"
    ] * 2
    assert whats[0].endswith("independent processes, sync_gradients")
    assert [target.met for target in section.targets] == [False, True, False, False]
    # Two ranks' 128 images at 125 a second, against 237.5 by two independent processes.
    assert "take 485.1 ms of a 1024.0 ms step" in section.targets[2].cause


def test_machine_drift_cancels_in_speedup() -> None:
    assert throughput.speedup(trained(sync=1.8)["batches"][0], "sync") == 1.8


def cannot_measure() -> dict:
    raise ValueError("no such card")


def measures_nothing() -> dict:
    return {"device": None}


def test_failing_program_keeps_the_other_results(tmp_path, capsys):
    kept = {"date": "2026-01-01", "machine": "none", "load": 0, "python": "3.11"}
    result = kept | {"programs": {"event_log": [event(1e-6)]}}
    gpu_program = next(program for program in PROGRAMS if program.name == "gpu")
    measure_into(result, [gpu_program._replace(measure=cannot_measure)])
    assert "ValueError: no such card" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r'as before: gpu\. The rest .* ARGS="--again gpu"'):
        keep(result, tmp_path)
    assert "event log, one event" in (tmp_path / "results.md").read_text()
    assert list(result["programs"]) == ["event_log"]
    measure_into(result, [gpu_program._replace(measure=measures_nothing)])
    keep(result, tmp_path)  # nothing is missing any more
    assert "no GPU" in (tmp_path / "results.md").read_text()
