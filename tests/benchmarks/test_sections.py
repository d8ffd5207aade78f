"""Every promised row is some program's, and each report tells a miss from a hit."""

from __future__ import annotations

import importlib.util
import json

import pytest

from benchmarks import (
    bucketed_sync_report,
    cold_calls_report,
    engines_report,
    event_log_report,
    failures_report,
    five_figures,
    gpu_report,
    hosts_report,
    lab_report,
    launchers_report,
    pages,
    peers_report,
    report,
    target_plot,
)
from benchmarks.__main__ import PROGRAMS
from benchmarks.rows import MEASURE, RARE, ROWS
from tests.benchmarks.test_report import result


def test_every_promised_row_has_a_program_and_a_section():
    programs = {each.name: each.section for each in PROGRAMS}
    assert set(ROWS.values()) == {*programs, MEASURE, RARE}
    assert all(callable(section) for section in programs.values())
    for name in set(ROWS.values()):
        assert importlib.util.find_spec(f"benchmarks.{name}") is not None, name


def four(value: float) -> list[float]:
    return [value] * 4


def bucketed(sync: float) -> dict:
    row = {"model": "MLP", "parameters": 7, "tensors": 2, "buckets": 1}
    return {"ranks": 2, "batch": 32, "models": [row | {"samples": times(sync=sync, ddp=1e-3)}]}


def times(**seconds: float) -> dict:
    return {name: four(value) for name, value in seconds.items()}


def event(seconds: float) -> dict:
    alone, operation = times(event=seconds, section=2e-6), times(on=2e-5, off=1.8e-5)
    return {"ranks": 2, "alone": alone, "all_reduce": operation}


def cold(ours: float) -> dict:
    row = {"bytes": 4, "samples": times(ours=ours, raw=1e-6)}
    large = {"bytes": 2**20, "samples": times(ours=1.1e-4, raw=1e-4)}
    return {"ranks": 2, "images": 64, "turns": [row, large], "step": [row]}


def engines(cell: float, start: float = 7.0) -> dict:
    cells = {"nothing": times(ours=cell, plain=1e-2)}
    return {"ranks": 4, "cells": cells, "starts": times(ours=start, plain=9.0)}


def failures(seconds: float) -> dict:
    hangs = [{"report": seconds, "next": seconds}] * 2
    kills = {"death": [seconds] * 2, "restart": [3 * seconds] * 2}
    alone = {"ranks": 5, "seconds": [seconds] * 3}
    return {"ranks": 4, "limit": hangs, "deadline": hangs, "alone": alone, **kills}


def hosts(ours: float, start: float = 7.0) -> dict:
    row = {"bytes": 2**20, "samples": times(ours=ours, gloo=2e-3, least=1.07e-3, raw=1e-3)}
    step = {"model": "MLP", "samples": times(ours=ours, gloo=2e-3, silent=1e-3)}
    run = {"all_reduce": [row], "ddp_step": [step]}
    starts = {"one host": [6.0] * 2, "two hosts": [start] * 2}
    runs = {"one host": run, "two hosts": run}
    return {"runs": runs, "starts": starts, "reports": four(1.2), "idle": 0.003}


@pytest.mark.parametrize(
    ("section", "good", "bad", "said"),
    [
        (bucketed_sync_report.section, bucketed(1.04e-3), bucketed(1.2e-3), "200 us a step"),
        (cold_calls_report.section, cold(1.5e-5), cold(1.7e-5), "+16.0 us, target <= +15 us"),
        (event_log_report.section, event(1.9e-6), event(2.1e-6), "2.10 us"),
        (engines_report.section, engines(1.1e-2, 4.4), engines(1.3e-2, 4.4), "+3.0 ms a cell"),
        (engines_report.section, engines(1e-2, 4.4), engines(1e-2, 4.6), "take 9.0 s here"),
        (failures_report.section, failures(0.19), failures(1.1), "took 1.10, 1.10 s"),
        (hosts_report.section, hosts(1.1e-3), hosts(1.2e-3), "a check took 1.07x"),
        (hosts_report.section, hosts(1.1e-3), hosts(2.1e-3), "0.95x (1 MiB), target > 1x"),
        (hosts_report.section, hosts(1.1e-3), hosts(1.1e-3, 9.0), "takes 6.0 s here"),
        (lab_report.section, {"warm": [2.0, 3.0]}, {"warm": [3.5, 4.0]}, "JupyterLab's own"),
    ],
)
def test_targets_are_met_or_missed_with_their_cause(section, good, bad, said):
    assert all(row.met for row in section(good).targets)
    text = report.markdown(result(ours=1), [section(bad)])
    assert "Missed:" in text
    assert said in text


def test_the_event_log_says_what_each_number_contains():
    text = "\n".join(event_log_report.section(event(1e-6)).lines)
    for row in ("one event", "one section", "all_reduce of 4 B, log on", "their difference"):
        assert f"| {row}" in text
    assert "- one section: an event, the context manager" in text
    assert "- an all_reduce with the log on against one with the log off" in text


def test_rare_measurements_are_kept_with_their_date_or_count_as_missing():
    assert [row.met for row in lab_report.rare_section(None).targets] == [False, False]
    kept = {"date": "2026-01-02", "lessons": {"00_a": 100.0, "01_b": 200.0}, "fresh": 50.0}
    section = lab_report.rare_section(kept)
    assert [row.measured for row in section.targets] == ["5.0 min", "50 s"]
    assert [row.met for row in section.targets] == [True, True]
    assert "on 2026-01-02" in "\n".join(section.lines)


def test_peers_and_launchers_are_tables_without_targets():
    row = {"bytes": 4, "samples": times(ours=4e-6, gloo=9e-6, raw=2e-6)}
    peers = peers_report.section({"ranks": 2, "no_c": "no mpicc", "all_reduce": [row]})
    text = "\n".join(peers.lines)
    assert "missing: no mpicc" in text
    assert "| 2.00x |" in text
    runs = {
        name: [{"checksum": "1", "samples_per_s": rate, "whole_seconds": 5.0}] * 2
        for name, rate in (("mpiexec", 300.0), ("torchrun", 200.0))
    }
    launched = launchers_report.section({"ranks": 2, "steps": 9, "runs": runs})
    assert "1.50 times" in "\n".join(launched.lines)
    assert "equal to the bit" in "\n".join(launched.lines)
    assert peers.targets == launched.targets == []


def test_hosts_that_could_not_be_made_are_told():
    section = hosts_report.section({"missing": "it takes root"})
    assert "Not measured here: it takes root." in section.lines
    assert not section.targets


def test_a_gpu_is_named_and_its_absence_too():
    assert "no GPU" in "\n".join(gpu_report.section({"device": None}).lines)
    rows = [{"bytes": 4, "samples": times(ours=4e-5, copy=1e-5, nccl=2e-5)}]
    runs = [{"ranks": 1, "all_reduce": rows}]
    text = "\n".join(gpu_report.section({"device": "G1", "runs": runs}).lines)
    assert text.startswith("## GPU\n\nG1;")
    assert "| 25% |" in text


def test_the_plot_of_targets_knows_which_way_is_better(tmp_path):
    less = report.Target("a", "<= 2 s", "1.0 s", "-", True)
    more = report.Target("b", ">= 1.75x", "3.50x", "-", True)
    none = report.Target("c", "(none)", "3.50x", "-", True)
    assert [target_plot.share(row) for row in (less, more, none)] == [0.5, 0.5, None]
    target_plot.plot([less, more, none], tmp_path / "targets.svg")
    assert "<svg" in (tmp_path / "targets.svg").read_text()


def test_a_page_gets_the_table_between_its_marks_only(tmp_path):
    path = tmp_path / "page.md"
    target = report.Target("a", "<= 2 s", "3.0 s", "-", False, "it is slow")
    text = pages.table_of(result(ours=1), [target])
    path.write_text("before\nafter\n")
    assert not pages.renew(path, text)
    assert path.read_text() == "before\nafter\n"
    path.write_text(f"before\n{pages.BEGIN}\nold\n{pages.END}\nafter\n")
    for _ in range(2):
        assert pages.renew(path, text)
    new = path.read_text()
    assert new.startswith("before\n")
    assert new.endswith(f"{pages.END}\nafter\n")
    assert "old" not in new
    assert new.count("Measured on D with `make bench`: M, L, torch T") == 1
    assert "| 1 MiB | 1,000,000 | 13,000,000 | 13.0x | 1,000,000 |" in new
    assert "- a: 3.0 s, target <= 2 s: it is slow." in new


def test_both_pages_have_their_marks(root, tmp_path):
    for page in (pages.FRONT, pages.PAGE):
        copy = tmp_path / page.name
        copy.write_text((root / page).read_text())
        assert pages.renew(copy, "new"), page


def test_the_five_figures_of_the_readme_are_those_of_the_results(root, tmp_path):
    kept = json.loads((root / "benchmarks" / "results" / "results.json").read_text())
    said = five_figures.in_words(kept)
    assert said.count("; ") == 4  # five
    _, begin, rest = (root / pages.FRONT).read_text().partition(pages.BEGIN)
    assert begin
    assert rest.partition(pages.END)[0].strip() == said.strip()
    faster = json.loads(json.dumps(kept))
    for row in faster["runs"][0]["all_reduce"]:
        row["samples"]["ours"] = [1e-3] * 4
    assert "this backend 1.00" in five_figures.in_words(faster)
    five_figures.plot(kept, tmp_path / "five.svg")
    assert "<svg" in (tmp_path / "five.svg").read_text()
