"""Three hang reports that real cells produced on four ranks, for an exercise of lesson 12."""

from __future__ import annotations

__all__ = ["BUGS", "REPORTS"]

BUGS = (
    "death",
    "deadlock",
    "endless loop",
    "missing send",
    "skipped collective",
    "wrong tag",
)

REPORTS = {
    "A": """\
rank  state     what                           where           for
0     waiting   all_reduce, SUM of 64 float32  cell 4, line 9  4.0 s
1     waiting   all_reduce, SUM of 64 float32  cell 4, line 9  4.0 s
2     finished
3     waiting   all_reduce, SUM of 64 float32  cell 4, line 9  4.0 s""",
    "B": """\
rank  state      what                                   where            for
0     waiting    recv from rank 3, tag 0, (1,) float32  cell 5, line 5   4.0 s
1     waiting    recv from rank 0, tag 0, (1,) float32  cell 5, line 5   4.0 s
2     waiting    recv from rank 1, tag 0, (1,) float32  cell 5, line 5   4.0 s
3     computing                                         cell 5, line 10""",
    "C": """\
rank  state    what                                         where            for
0     waiting  send to rank 1, tag 5, (1000000,) float32    cell 6, line 4   4.0 s
1     waiting  recv from rank 0, tag 6, (1000000,) float32  cell 6, line 8   4.0 s
2     waiting  barrier                                      cell 6, line 12  4.0 s
3     waiting  barrier                                      cell 6, line 12  4.0 s""",
}
