"""The figure of an all-reduce ends with everyone's sum, and its words say each message."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from rank_by_rank.lesson_03 import figures

from course_lib.parallel.all_reduces import ALGORITHMS


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_last_step_combines_all_ranks_in_every_chunk(name, p):
    steps = [ALGORITHMS[name].schedule(rank, p, p) for rank in range(p)]
    states = figures._follow(list(zip(*steps, strict=True)), p)
    assert states[0][0] == [[{rank}] * p for rank in range(p)]
    assert states[-1][0] == [[set(range(p))] * p for _ in range(p)]
    figure = figures.all_reduce_steps(name, p)
    root = ElementTree.fromstring(figure.svg)
    panels = [t.text for t in root.iter() if (t.text or "").startswith(("before", "after step"))]
    assert f"after step {len(states) - 1}" in panels
    assert len(re.findall(r"Step \d+:", figure.alt)) == len(states) - 1


def test_ring_has_alternative_text():
    alt = figures.all_reduce_steps("ring").alt
    assert "Step 1: rank 0 adds chunk 3 of rank 3, rank 1 adds chunk 0 of rank 0" in alt
    assert "Step 4: rank 0 copies chunk 0 of rank 3" in alt


@pytest.mark.parametrize(("name", "p"), [("star", 4), ("ring", 1), ("ring", 5)])
def test_all_reduce_steps_rejects_bad_arguments(name, p):
    with pytest.raises(ValueError, match=r"must be|has 2 to 4"):
        figures.all_reduce_steps(name, p)
