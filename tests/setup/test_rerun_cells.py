"""Of the cells that are run again, those fail whose names later cells have used otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import rerun_cells

LESSON = """\
# %%
from course_lib.cluster import start_cluster

cluster = start_cluster(n=2)

# %%
number = 4

# %%
assert number == 4

# %%
# %%px
total = comm.allreduce(1)

# %%
# %%px
assert total == 2

# %% tags=["raises-exception"]
number / 0

# %%
number = "another"
print(len(number))

# %%
# %%px
total = "another"

# %%
try:
    numbers.append(1)
except NameError:
    numbers = []
assert not numbers
"""


@pytest.mark.timeout(300)
def test_cells_that_fail_when_rerun_are_reported(tmp_path: Path) -> None:
    source = tmp_path / "lesson_90" / "90_short.py"
    source.parent.mkdir()
    source.write_text(LESSON)
    assert rerun_cells.failing_again(source) == [
        "90_short.py, cell 3: AssertionError:",
        "90_short.py, cell 5: rank 1: AssertionError",
        "90_short.py, cell 9: AssertionError:",
    ]
