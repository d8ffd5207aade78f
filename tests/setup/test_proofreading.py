"""Every page is proofread: spelling, grammar, and the tics of STYLE (tools/proofreading)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.proofreading.__main__ import files, findings, proofread, prose


def found_in(tmp_path: Path, name: str, text: str) -> list[tuple[int, str]]:
    path = tmp_path / name
    path.write_text(text)
    return [(one.line, one.text) for one in proofread(name, prose(path))]


def test_files_have_no_findings() -> None:
    found = [str(one) for each in findings(files()).values() for one in each]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("sentence", "wrong"),
    [
        ("Then you can mend the ring.", "mend"),
        ("Without a receiver the send waits for ever.", "for ever"),
        ("Whoever sends first waits.", "Whoever"),
        (
            "Who knows autograd well skips section one.",
            "Who knows autograd well skips section one.",
        ),
        ("The report tells of a dead rank.", "tells of"),
        ("The exact versions stand in a file of their own.", "stand in"),
        ("The ranks are freed, also if the kernel dies.", ", also if"),
        ("A rank of MPICH died so.", "died so"),
        ("Large trainings use both.", "trainings"),
        ("It is a training by hand.", "a training"),
        ("The two are synchronized.", "synchronized"),
        ("It takes a lost host for dead.", "takes a lost host for dead"),
        ("It works!", "!"),
        ("The colour is never gray in a color picture.", "color"),
        ("This is an ring.", "an"),
        ("MPI allows to send before the other side receives.", "allows to send"),
        ("A rank did not received it.", "received"),
        ("Every rank waits for for the next.", "for for"),
        ("The ranks recieve it.", "recieve"),
    ],
)
def test_bad_wording_is_found(tmp_path: Path, sentence: str, wrong: str) -> None:
    found = [text for _, text in found_in(tmp_path, "page.md", sentence)]
    assert any(wrong in text or text in wrong for text in found), found


@pytest.mark.parametrize(
    "sentence",
    [
        "If so, the rank does so, and the report says so.",
        "Who knows why it hangs?",
        "Each training run has a different seed, and each training step has its own batch.",
        "There are none. A larger prize seizes the resized array.",
        "They stand for sums; rank 0 stands in for the server.",
        "Slurm's `srun` starts float32 on n08 with `DataLoader`; MPI's ring is an MPI ring.",
        'Readers say "whoever" too often: docs/mend.md lists it.',
        "With $p$ ranks, $whoever$ sends, `mend` and ``for `ever` `` are names.",
    ],
)
def test_good_english_passes(tmp_path: Path, sentence: str) -> None:
    assert found_in(tmp_path, "page.md", sentence) == []


def test_code_is_ignored_and_line_numbers_are_kept(tmp_path: Path) -> None:
    page = "---\ntitle: mend\n---\n\n```python\nmend = 1\n```\n\n<!-- mend it -->\n"
    assert found_in(tmp_path, "page.md", page) == [(9, "mend")]
    assert found_in(tmp_path, "page.md", "# T\n\n## Further reading\n\nRecieve, mend.\n") == []


def test_only_markdown_cells_of_a_lesson_are_read(tmp_path: Path) -> None:
    lesson = (
        "# %% [markdown]\n# Then mend it.\n\n# %%\n# mend\nmend = 1\n\n# %% [markdown]\n# mend\n"
    )
    assert found_in(tmp_path, "01_lesson.py", lesson) == [(2, "mend"), (9, "mend")]


def test_only_docstrings_and_comments_of_a_program_are_read(tmp_path: Path) -> None:
    program = (
        '"""Mend it.\n\nArgs:\n    what: to mend, but not ``mend``, nor "to mend".\n"""\n\n'
        'mend = "mend"  # mends it\n\n\ndef mend_it(mend: str = """mend""") -> str:\n'
        "    # a tpyo is let through\n    return mend\n"
    )
    assert found_in(tmp_path, "tool.py", program) == [(1, "Mend"), (4, "mend"), (7, "mends")]


def test_programs_are_among_the_files() -> None:
    names = {path.name for path in files()}
    assert {"README.md", "00_start_here.py", "process_group.py", "keeper.py", "loops.py"} <= names


def test_mistake_ids_and_fields_are_ignored(tmp_path: Path) -> None:
    page = "## 01.ring_mend\n\n### mend-it\n\nrank {mend} has to mend it\n"
    assert found_in(tmp_path, "mistakes.md", page) == [(5, "mend")]
