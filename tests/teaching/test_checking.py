"""A check says one line, whatever the learner's function does, and the ranks work afterwards."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
import torch

from course_lib.teaching import catalogue, mistakes
from course_lib.teaching.catalogue import UnknownExerciseError, all_exercises, find
from course_lib.teaching.checking import CheckError, check, together
from course_lib.teaching.lessons import exercise_cell
from course_lib.teaching.run_check import CheckResult
from course_lib.teaching.solution_marks import unmarked

RANKS_AGREE = """
assert comm.allreduce(1) == world_size, "comm works"
number = torch.ones(1)
dist.all_reduce(number)
assert number.item() == world_size, "the process group works"
assert treasure == 10 * rank, "variables are kept"
"""


@pytest.fixture
def allow(monkeypatch):
    """A function that gives checks so many seconds, in place of the minute that is ample."""

    def seconds(number: float) -> None:
        name = "course_lib.teaching.checking.find"
        monkeypatch.setattr(name, lambda id: find(id)._replace(deadline=number))

    return seconds


@pytest.fixture
def told(cluster, capsys, allow):
    """A function that defines the learner's function on the ranks and returns what is said."""
    cluster.view.execute("treasure = 10 * rank", silent=True)

    def tell(code: str, deadline: float = 60) -> str:
        allow(deadline)
        cluster.view.execute(code, silent=True)
        capsys.readouterr()
        began = time.monotonic()
        check("90.total")
        assert time.monotonic() - began < deadline + 45, "a check never freezes the notebook"
        said = capsys.readouterr().out.strip()
        cluster.view.execute(RANKS_AGREE, silent=True)
        return said

    return tell


def test_right_answer_on_the_ranks(told) -> None:
    said = told("def total(comm):\n    print('noise')\n    return comm.allreduce(comm.rank + 1)")
    assert said == "90.total: right. Every rank has the sum."


def test_wrong_answer_on_one_rank(told) -> None:
    said = told("def total(comm):\n    return comm.allreduce(comm.rank + 1) * comm.rank")
    assert said == "90.total: not yet: rank 0 returned its own rank (own-rank)"


def test_wrong_answer_shows_its_printed_output(told) -> None:
    said = told("def total(comm):\n    print('I am', comm.rank)\n    return comm.rank")
    assert said.splitlines() == [
        "90.total: not yet: rank 0 returned its own rank (own-rank)",
        "Your function printed:",
        "rank 0 | I am 0",
        "rank 1 | I am 1",
    ]


def test_an_exception_is_shown_with_its_line(told) -> None:
    said = told("# %%px\ndef total(comm):\n    size = comm.size\n    return size / (size - 2)")
    assert said == (
        "90.total: not yet: on rank 0 your function raised ZeroDivisionError: division by zero. "
        "It happened in line 4: `return size / (size - 2)` (it-raises)"
    )


def test_exception_on_one_rank_explains_the_waiting_of_others(told) -> None:
    said = told(
        "def total(comm):\n"
        "    if comm.rank == 1:\n"
        "        return {}['total']\n"
        "    return comm.allreduce(0)",
        deadline=8,
    )
    assert said.splitlines()[0] == (
        "90.total: not yet: on rank 1 your function raised KeyError: 'total'. "
        "It happened in line 3: `return {}['total']` (it-raises)"
    )


def test_an_exit_is_shown_with_its_line(told) -> None:
    said = told("def total(comm):\n    if comm.rank == 1:\n        raise SystemExit(3)", deadline=8)
    assert said == (
        "90.total: not yet: on rank 1 your function raised SystemExit: 3. "
        "It happened in line 3: `raise SystemExit(3)` (it-raises)"
    )


@pytest.mark.parametrize(
    ("raised", "named"),
    [
        ("BaseException('b')", "BaseException: b"),
        ("GeneratorExit", "GeneratorExit"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("KeyboardInterrupt('stop')", "KeyboardInterrupt: stop"),
    ],
)
def test_an_exception_that_is_no_error_is_shown_too(told, raised, named) -> None:
    said = told(f"def total(comm):\n    raise {raised}", deadline=8)
    assert said.splitlines()[0] == (
        f"90.total: not yet: on rank 0 your function raised {named}. "
        f"It happened in line 2: `raise {raised}` (it-raises)"
    )


# An exception whose text is code of the learner's, and fails.
NO_TEXT = """
class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")
"""
NOT_SHOWN = "NoText: (its text cannot be shown: that raised RuntimeError)"


def test_an_exception_that_cannot_be_shown(told) -> None:
    said = told(f"{NO_TEXT}\ndef total(comm):\n    raise NoText", deadline=8)
    assert said == (
        f"90.total: not yet: on rank 0 your function raised {NOT_SHOWN}. "
        "It happened in line 6: `raise NoText` (it-raises)"
    )


@pytest.mark.parametrize("does", ["sys.stdout = sys.stderr = None", "sys.stdout.close()"])
def test_an_answer_that_loses_its_output_is_judged(told, does) -> None:
    said = told(f"import sys\ndef total(comm):\n    {does}\n    return comm.rank", deadline=8)
    assert said == "90.total: not yet: rank 0 returned its own rank (own-rank)"


def test_interrupt_of_one_rank_by_itself_explains_the_waiting_of_others(told) -> None:
    code = (
        "def total(comm):\n    if comm.rank == 1:\n        raise KeyboardInterrupt\n"
        "    return comm.allreduce(0)"
    )
    assert told(code, deadline=4).splitlines()[0] == (
        "90.total: not yet: on rank 1 your function raised KeyboardInterrupt. "
        "It happened in line 3: `raise KeyboardInterrupt` (it-raises)"
    )


def test_exception_is_shown_before_wrong_results_of_others(told) -> None:
    said = told("def total(comm):\n    return [].pop() if comm.rank == 1 else comm.rank")
    assert said == (
        "90.total: not yet: on rank 1 your function raised IndexError: pop from empty list. "
        "It happened in line 2: `return [].pop() if comm.rank == 1 else comm.rank` (it-raises)"
    )


def test_not_implemented_error_in_a_library_is_not_a_stub(told) -> None:
    code = "def total(comm):\n    return open('x', opener=no_opener)"
    opener = "exec(compile('def no_opener(*a):\\n    raise NotImplementedError(1)', 'lib', 'exec'))"
    said = told(f"{opener}\n{code}")
    assert "rank 0 your function raised NotImplementedError: 1. It happened in line 3" in said


def test_function_on_only_one_rank_is_reported_at_once(told) -> None:
    began = time.monotonic()
    of_rank_0 = "if rank == 0:\n    def total(comm):\n        return comm.allreduce(1)"
    said = told(f"globals().pop('total', None)\n{of_rank_0}")
    assert said == (
        "90.total: not attempted yet. `total` is only on rank 0, not on rank 1: run the cell "
        "that defines it."
    )
    assert time.monotonic() - began < 15


def test_missing_process_group_says_what_to_run(told, cluster) -> None:
    cluster.view.execute(
        "def total(comm):\n    raise ValueError('Default process group has not been initialized')",
        silent=True,
    )
    with pytest.raises(CheckError) as error:
        check("90.total")
    assert str(error.value) == (
        "90.total cannot be checked: there is no process group: run the lesson's first cell with "
        "dist.init_process_group, then this one"
    )


def test_library_function_is_not_the_learners(told) -> None:
    said = told("from course_lib.teaching.exercise import exercise as total")
    assert said == (
        "90.total: not attempted yet. `total` is the library's now, because another cell has "
        "imported that name: run the cell that defines it."
    )


def test_partial_of_a_library_function_is_not_the_learners(told) -> None:
    said = told("from functools import partial\ntotal = partial(partial(dist.barrier), None)")
    assert "`total` is the library's now" in said


def test_missing_function_is_reported(told) -> None:
    assert "There is no function `total`: run the cell" in told("total = 3")


def test_function_in_the_wrong_place_is_reported(told, cluster, allow, capsys) -> None:
    here = {"check": check}
    exec("def total(comm): ...\ndef check_it(): check('90.total')", here)
    told("def total(comm):\n    raise NotImplementedError")
    here["check_it"]()
    assert capsys.readouterr().out.splitlines() == [
        "90.total: not attempted yet.",
        "There is a `total` in the notebook, but this exercise is checked on the ranks: make "
        "`%%px` the first line of its cell, and run the cell again.",
    ]
    cluster.view.execute("def double(x): ...", silent=True)
    exec("check('90.double')", here)
    assert capsys.readouterr().out.splitlines() == [
        "90.double: not attempted yet. There is no function `double`: run the cell that defines "
        "it.",
        "There is a `double` on the ranks, but this exercise is checked in the notebook: "
        "remove `%%px` from the first line of its cell, and run the cell again.",
    ]
    cluster.view.execute("del double", silent=True)
    exec("check('90.double')", here)
    assert "on the ranks" not in capsys.readouterr().out


# Where a rank does end, it has longer for it.
@pytest.mark.parametrize(
    ("code", "ranks", "deadline"),
    [
        ("def total(comm):\n    return comm.recv()", "ranks 0, 1", 3),
        ("def total(comm):\n    while comm.rank == 1: pass\n    return 3", "rank 1", 8),
        ("def total(comm):\n    time.sleep(60)", "ranks 0, 1", 3),
        (
            "def total(comm):\n    try:\n        comm.recv()\n    except Exception:\n"
            "        while True: pass",
            "ranks 0, 1",
            3,
        ),
        ("def total(comm):\n    dist.recv(torch.ones(1), src=1 - comm.rank)", "ranks 0, 1", 3),
    ],
    ids=["deadlock", "endless loop on one rank", "sleep", "caught and endless", "torch"],
)
def test_a_function_that_does_not_end_is_recognised(told, code, ranks, deadline) -> None:
    expected = f"your function did not finish within {deadline} s on {ranks}. It was in line "
    said, renewed = told(code, deadline).splitlines()
    assert said.startswith(f"90.total: not yet: {expected}")
    assert said.endswith("` (does-not-finish)")
    assert renewed.startswith("Communication is renewed: comm and the default process group")


def test_the_line_is_that_of_the_rank_that_computes(told) -> None:
    code = (
        "def total(comm):\n    if comm.rank == 1:\n        while True: pass\n"
        "    return comm.allreduce(comm.rank + 1)"
    )
    said = told(code, deadline=3).splitlines()[0]
    assert "within 3 s on ranks 0, 1. It was in line 3: `while True: pass` (does" in said


@pytest.mark.parametrize(
    ("id", "is_sure"),
    [
        ("00.global_accuracy", False),
        ("01.ring_pass", False),
        ("01.shift", False),
        ("01.handshake", False),
        ("01.write_in_order", False),
        ("03.any_world_size", True),
    ],
)
def test_a_right_answer_is_right_on_two_ranks_too(cluster, capsys, id, is_sure) -> None:
    code = unmarked(exercise_cell(id)).removeprefix("%%px\n")
    cluster.view.execute(f"from mpi4py import MPI\n{code}", silent=True)
    capsys.readouterr()
    check(id)
    said = capsys.readouterr().out.strip()
    assert said.startswith(f"{id}: right.")
    doubt = (
        ". Some mistakes, such as a message in the wrong direction, do not show on 2 ranks: to be "
        "sure, start more with start_cluster(4, replace=True), and check it there too."
    )
    assert said.endswith(doubt) != is_sure


@pytest.mark.parametrize("mistake", ["mean-of-norms", "forgets-the-limit"])
def test_a_mistake_has_its_own_name_on_two_ranks(cluster, capsys, mistake) -> None:
    exercise = find("04.clipped_mean")
    answer = mistakes.read(mistakes.path_of(exercise)).wrong[exercise.id][mistake]
    cluster.view.execute(answer, silent=True)
    check(exercise.id)
    assert f"({mistake})" in capsys.readouterr().out


def test_leftover_message_does_not_affect_the_next_check(told) -> None:
    said = told(
        "def total(comm):\n    comm.isend('left behind', dest=1 - comm.rank)\n"
        "    return comm.allreduce(comm.rank + 1)"
    )
    assert "right" in said
    assert "right" in told(
        "def total(comm):\n    assert not comm.iprobe(), 'nothing is left of the call before'\n"
        "    return comm.allreduce(comm.rank + 1)"
    )


def test_unattempted_and_undefined_functions_are_reported(told) -> None:
    said = told("def total(comm):\n    raise NotImplementedError('write this')")
    assert said == "90.total: not attempted yet."
    assert told("del total") == (
        "90.total: not attempted yet. There is no function `total`: run the cell that defines it."
    )


def test_crashing_check_is_an_error_not_a_verdict(cluster) -> None:
    cluster.view.execute("def total(comm):\n    return -1", silent=True)
    with pytest.raises(CheckError, match=r"itself failed; please report this(?s:.*)does not know"):
        check("90.total")


def test_a_result_that_the_check_cannot_judge(cluster) -> None:
    cluster.view.execute("def total(comm):\n    return torch.ones(2)", silent=True)
    with pytest.raises(CheckError) as raised:
        check("90.total")
    assert str(raised.value) == (
        "the check of 90.total cannot judge what your function returned: RuntimeError: Boolean "
        "value of Tensor with more than one value is ambiguous (in exercises.py, line 26). Look "
        "at the kind of your result; if it is what the exercise asks for, please report this"
    )


def test_a_result_whose_own_code_raises(told) -> None:
    code = (
        "class Number:\n    def __eq__(self, other):\n        return 1 / 0\n\n"
        "def total(comm):\n    return Number()"
    )
    assert told(code) == (
        "90.total: not yet: on rank 0 your function raised ZeroDivisionError: division by zero. "
        "It happened in line 3: `return 1 / 0` (it-raises)"
    )


# ---- in the notebook --------------------------------------------------------------------------


def said_of(capsys, double) -> str:
    capsys.readouterr()
    check("90.double", double)
    return capsys.readouterr().out.strip()


@pytest.mark.usefixtures("own_exercises")
def test_check_in_the_notebook(capsys) -> None:
    assert said_of(capsys, lambda x: 2 * x) == "90.double: right. 4 became 8."
    wrong = said_of(capsys, lambda x: x * x)
    assert wrong == "90.double: not yet: 4 became 16: that is its square (squared)"

    def raises(x):
        return [x][x]

    line = raises.__code__.co_firstlineno + 1
    assert said_of(capsys, raises) == (
        "90.double: not yet: your function raised IndexError: list index out of range, called "
        "with x=4. "
        f"It happened in line {line}: `return [x][x]` (it-raises)"
    )


@pytest.mark.usefixtures("own_exercises")
def test_a_very_long_text_is_cut_in_the_middle(capsys) -> None:
    def raises(x):
        raise ValueError(f"begins {'x' * 100_000} ends")

    said = said_of(capsys, raises)
    assert len(said) < 2000
    assert "your function raised ValueError: begins xxx" in said
    assert "xxx ends, called with x=4. It happened in line" in said
    check("00.neighbours", lambda rank, world_size: "x" * 100_000)
    said = capsys.readouterr().out
    assert len(said) < 3000
    assert said.endswith("xxx', not two numbers: `return left, right` (not-two-numbers)\n")


IN_VAIN = {
    "async": "it is defined with `async def`, so a call of it runs none of its lines. Define",
    "yield": "its `yield` makes it a generator, so a call of it runs none of its lines. Return",
    "class": "it is a class, so a call of it only creates an object. Define a function,",
}


@pytest.mark.usefixtures("own_exercises")
@pytest.mark.parametrize("kind", IN_VAIN)
def test_a_function_whose_call_runs_nothing(capsys, kind) -> None:
    async def later(x):
        return 2 * x

    def bit_by_bit(x):
        yield 2 * x

    class Double:
        def __init__(self, x):
            self.result = 2 * x

    said = said_of(capsys, {"async": later, "yield": bit_by_bit, "class": Double}[kind])
    assert said.startswith(f"90.double: not yet: {IN_VAIN[kind]}")
    assert said.endswith(" (not-a-plain-function)")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("async", "async def total(comm):\n    return comm.allreduce(comm.rank + 1)"),
        ("yield", "def total(comm):\n    yield comm.allreduce(comm.rank + 1)"),
    ],
)
def test_a_function_on_the_ranks_whose_call_runs_nothing(told, kind, code) -> None:
    assert told(code).startswith(f"90.total: not yet: {IN_VAIN[kind]}")


@pytest.mark.usefixtures("own_exercises")
@pytest.mark.parametrize("deadline", [-1, 0, float("nan"), float("inf"), 1e300, True, "x", "5"])
def test_a_deadline_that_is_no_number_of_seconds_is_refused(deadline) -> None:
    with pytest.raises(CheckError, match=r"give seconds above 0, such as deadline=60$"):
        check("90.double", lambda x: 2 * x, deadline=deadline)


@pytest.mark.usefixtures("own_exercises")
def test_an_endless_loop_in_the_notebook(capsys, allow) -> None:
    allow(1)

    def endless(x):
        while True:
            try:
                time.sleep(60)
            except Exception:
                x += 1

    line = endless.__code__.co_firstlineno + 3
    expected = (
        "your function did not finish within 1 s. "
        f"It was in line {line}: `time.sleep(60)` (does-not-finish)"
    )
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 100)
    began = time.monotonic()
    assert said_of(capsys, endless) == f"90.double: not yet: {expected}"
    assert time.monotonic() - began < 45
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    assert signal.setitimer(signal.ITIMER_REAL, 0)[0] > 50, "another one's alarm is set again"


@pytest.mark.usefixtures("own_exercises")
def test_a_loop_that_catches_everything_ends_by_its_limit(capsys, allow) -> None:
    allow(1)

    def endless(x):
        while True:
            try:
                time.sleep(60)
            except:  # noqa: E722
                x += 1

    began = time.monotonic()
    assert "did not finish within 1 s" in said_of(capsys, endless)
    assert time.monotonic() - began < 30
    assert sys.gettrace() is None or "endless" not in repr(sys.gettrace())


@pytest.mark.usefixtures("own_exercises")
def test_output_comes_back_if_the_alarm_rings_at_the_end_of_a_check(capsys, allow) -> None:
    """What a function has made is freed after its end, here by C code that takes over 0.5 s."""
    allow(1)
    kept = []

    def double(x):
        made = type("Made", (), {})()
        kept.append(weakref.ref(made, functools.partial(list.count, [0] * 40_000_000)))
        while True:
            pass

    before = sys.stdout, signal.getsignal(signal.SIGALRM)
    said = said_of(capsys, double)
    assert "90.double: not yet: your function did not finish within 1 s" in said
    assert (sys.stdout, signal.getsignal(signal.SIGALRM)) == before


def test_a_check_does_not_depend_on_what_torch_was_set_to(capsys) -> None:
    answer = unmarked(exercise_cell("07.mean_loss"))
    sets = "    torch.set_grad_enabled(False)\n    torch.set_default_dtype(torch.float64)\n"
    names: dict = {"torch": torch}
    exec(answer.replace('"""\n', f'"""\n{sets}', 1), names)
    assert torch.is_grad_enabled()
    check("07.mean_loss", names["mean_loss"])  # without a gradient
    assert "(no-gradient)" in capsys.readouterr().out
    assert (torch.is_grad_enabled(), torch.get_default_dtype()) == (True, torch.float32)
    exec(answer, names)
    with torch.no_grad():
        check("07.mean_loss", names["mean_loss"])
        assert not torch.is_grad_enabled()
    assert "07.mean_loss: right." in capsys.readouterr().out


@pytest.mark.usefixtures("own_exercises")
def test_a_loop_that_prints_ends_by_its_limit(capsys, allow) -> None:
    allow(1)

    def prints(x):
        while True:
            print(x, "again")

    began = time.monotonic()
    said = said_of(capsys, prints)
    assert "did not finish within 1 s" in said
    assert said.count("4 again\n") > 5  # its last line may be cut, as print writes in pieces
    assert time.monotonic() - began < 30


@pytest.mark.usefixtures("own_exercises")
def test_a_result_that_raises_not_implemented_error_was_attempted(capsys) -> None:
    class Result:
        def __eq__(self, other):
            raise NotImplementedError("no such operator")

    with pytest.raises(CheckError, match="cannot judge"):
        check("90.double", eval("lambda x: result", {"result": Result()}))


@pytest.mark.usefixtures("own_exercises")
def test_an_exception_that_cannot_be_shown_in_the_notebook(capsys) -> None:
    names: dict = {}
    exec(f"{NO_TEXT}\ndef double(x):\n    raise NoText", names)
    assert said_of(capsys, names["double"]) == (
        f"90.double: not yet: your function raised {NOT_SHOWN}, called with x=4. "
        "It happened in line 7 (it-raises)"
    )


@pytest.mark.usefixtures("own_exercises")
@pytest.mark.parametrize("does", ["sys.stdout = sys.stderr = None", "sys.stdout.close()"])
def test_an_answer_that_loses_its_output_in_the_notebook(capsys, does) -> None:
    names = {"sys": sys}
    exec(f"def double(x):\n    {does}\n    return x * x", names)
    stderr = sys.stderr
    wrong = said_of(capsys, names["double"])
    assert wrong == "90.double: not yet: 4 became 16: that is its square (squared)"
    assert sys.stderr is stderr


@pytest.mark.usefixtures("own_exercises")
def test_stopped_check_is_reported_in_one_sentence(capsys) -> None:
    def stopped(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stop:
        said_of(capsys, stopped)
    shown = ["KeyboardInterrupt: the check of 90.double was interrupted"]
    assert stop.value._render_traceback_() == shown


@pytest.mark.usefixtures("own_exercises")
@pytest.mark.parametrize("raised", [SystemExit, GeneratorExit, BaseException])
def test_an_exception_that_is_no_error_in_the_notebook(capsys, raised) -> None:
    def double(x):
        raise raised("bye")

    named = f"your function raised {raised.__name__}: bye, called with x=4. It happened in line "
    assert f"90.double: not yet: {named}" in said_of(capsys, double)

    def neighbours(rank, world_size):
        raise raised("bye")

    check("00.neighbours", neighbours)
    assert f"raised {raised.__name__}: bye" in (said := capsys.readouterr().out)
    assert "RuntimeError" not in said


@pytest.mark.usefixtures("own_exercises")
def test_nested_check_is_rejected(capsys) -> None:
    def double(x):
        check("90.double", double)

    assert "has called check again: put check in a cell of its own" in said_of(capsys, double)
    assert said_of(capsys, lambda x: 2 * x) == "90.double: right. 4 became 8."


@pytest.mark.usefixtures("own_exercises")
def test_check_works_in_another_thread(capsys) -> None:
    thread = threading.Thread(target=check, args=("90.double", lambda x: 2 * x))
    thread.start()
    thread.join()
    assert "right" in capsys.readouterr().out


@pytest.mark.usefixtures("own_exercises")
def test_function_is_found_in_the_callers_namespace(capsys) -> None:
    exec("def double(x):\n    return 2 * x\ncheck('90.double')", {"check": check})
    assert "right" in capsys.readouterr().out
    exec("check('90.double')", {"check": check})
    assert "There is no function `double`" in capsys.readouterr().out


def test_unknown_exercise_error_lists_similar_ones() -> None:
    with pytest.raises(UnknownExerciseError, match=r"no exercise '01.ring'.* 01.ring_pass"):
        check("01.ring")
    with pytest.raises(UnknownExerciseError, match="the exercises are 00"):
        check("ring")


@pytest.mark.parametrize("id", [["a"], {}, None, 7, check, "", "*", "**.a", "\0", "01/../00.a"])
def test_an_id_that_cannot_be_one_is_unknown(id) -> None:
    with pytest.raises(UnknownExerciseError, match=r"no exercise .*; the exercises are 00"):
        check(id)


def test_broken_lesson_package_affects_only_its_exercises(tmp_path, monkeypatch) -> None:
    room = tmp_path / "rooms_one_broken" / "lesson_98"
    room.mkdir(parents=True)
    (room / "exercises.py").write_text("import no_such_module_98")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(catalogue, "PACKAGES", [*catalogue.PACKAGES, "rooms_one_broken"])
    assert find("01.ring_pass").id == "01.ring_pass"
    with pytest.raises(ModuleNotFoundError, match="no_such_module_98"):
        find("98.any")


def test_check_and_hint_do_not_start_mpi() -> None:
    ids = [id for id in all_exercises() if find(id).where == "notebook" and id < "90"]
    code = (
        "import sys\n"
        "from course_lib.teaching import check, hint, solution\n"
        f"for id in {ids!r}:\n"
        "    hint(id); solution(id)\n"
        "hint('01.ring_pass'); solution('02.scatter')\n"
        f"for id in {ids!r}:\n"
        "    if id < '04':\n"  # from lesson 04 on, notebooks train in their kernel too
        "        check(id, lambda *args: None)\n"
        "assert not {'torch', 'mpi4py'} & set(sys.modules), 'a kernel is no rank'\n"
        f"for id in {ids!r}:\n"
        "    check(id, lambda *args: None)\n"
        "assert 'mpi4py' not in sys.modules, 'a kernel is no rank'\n"
        "try:\n"
        "    check('01.ring_pass')\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "there is no cluster: run the cell with start_cluster(), then" in done.stdout


# ---- what the ranks say together --------------------------------------------------------------


def test_causes_come_before_consequences() -> None:
    right, freed = CheckResult("right", "Good."), CheckResult("freed", "recv: not finished")
    wrong, raised = (
        CheckResult("wrong", "no", "m"),
        CheckResult("raised", "KeyError: 1", "it-raises", "l"),
    )
    assert together([right, right]).kind == "right"
    assert together([freed, wrong, right]).mistake == "m"
    assert together([freed, wrong, raised]).text == "on rank 2 your function raised KeyError: 1"
    assert together([right, freed, freed]).text.startswith(
        "your function did not finish on ranks 1, 2: recv"
    )
    assert together([wrong, CheckResult("not attempted")]).kind == "not attempted"
    assert together([wrong, CheckResult("broken", "Traceback")]).kind == "broken"
