"""The cases that ``python -m tests.ranks`` has been asked for, as tests."""

from __future__ import annotations

import json
import os
import tempfile

import pytest

from tests import ranks

ASKED = json.loads(os.environ[ranks.BY_HAND])
if ASKED["folder"]:
    tempfile.tempdir = ASKED["folder"]
PARAMETERS = [
    ranks.parameter(ASKED["mpi"], ASKED["n"], case, id=case, backend=ASKED["backend"])
    for case in ASKED["cases"]
]


@pytest.mark.parametrize(("mpi", "n", "case"), PARAMETERS)
def test_case(mpi, n, case, rank, size):
    ranks.run_case(case, rank, size)
