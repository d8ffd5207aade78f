"""What a learner sees of a ``%%px`` cell, in a real kernel with four ranks."""

from __future__ import annotations

import re
import textwrap

import pytest

pytestmark = pytest.mark.timeout(240)

_HOW_FAR = re.compile(r"\d+ s: ")  # what a start says of itself that takes long


def px(body: str, options: str = "") -> str:
    return f"%%px {options}".rstrip() + "\n" + textwrap.dedent(body)


def test_banner(kernel):
    lines = [line for line in kernel.banner.splitlines() if not _HOW_FAR.match(line)]
    first, titles, *rows = lines
    assert re.fullmatch(r"4 ranks ready in \d+\.\d s", first)
    assert titles.startswith("rank  device")
    assert len(rows) == 4


def test_prints_are_in_rank_order_and_labelled(kernel):
    # The higher the rank, the earlier it prints.
    cell = """
        import time
        time.sleep(0.1 * (world_size - rank))
        for i in range(2):
            print("line", i, "of", rank)
    """
    expected = "".join(f"rank {r} | line {i} of {r}\n" for r in range(4) for i in range(2))
    for _ in range(3):
        assert kernel.must(px(cell)).text() == expected


def test_prints_of_one_rank_are_in_order(kernel):
    kernel.must("cluster.view.execute('import sys, subprocess', block=True);")
    cell = """
        for i in range(300):
            print(i, end=" " if i % 100 else "\\n", flush=i % 7 == 0)
    """
    out = kernel.must(px(cell, "--targets 1")).text()
    assert re.sub(r"rank 1 \|", " ", out).split() == [str(i) for i in range(300)]


def test_standard_error_is_labelled_too(kernel):
    out = kernel.must(px("import sys\nprint('oh', file=sys.stderr)"))
    assert out.text("stderr") == "".join(f"rank {r} | oh\n" for r in range(4))


def test_results(kernel):
    assert kernel.must(px("rank * 10")).text() == "".join(
        f"rank {r} = {r * 10}\n" for r in range(4)
    )
    out = kernel.must("%px torch.zeros(2, 1) + rank").text()
    assert out.startswith("rank 0 = tensor([[0.],\n                 [0.]])\nrank 1 = tensor([[1.")


def test_garbage_collection_on_a_rank_leaves_out_the_imports(kernel):
    """They are some 200,000 objects, over which each walk would take 0.2 s."""
    output = kernel.must("%px import gc; gc.isenabled() and gc.get_freeze_count() > 100_000")
    assert output.text().count("True") == 4, output.text()


def test_help_is_printed(kernel):
    said = kernel.must("%%px --targets 0,2\ncomm.allreduce?\n'here?'").text()
    for rank in (0, 2):
        lines = [line for line in said.splitlines() if line.startswith(f"rank {rank}")]
        assert any("Reduce to All" in line for line in lines), said
        assert lines[-1] == f"rank {rank} = 'here?'"
    assert "\x1b" not in said
    source = kernel.must("%%px --targets 1\ntorch.optim.SGD.step??").text()
    assert "rank 1 |     def step(self, closure=None):" in source


def test_figures_are_in_rank_order(kernel):
    cell = """
        from IPython.display import SVG, display
        for i in range(2):
            display(SVG(f"<svg><text>rank {rank} figure {i}</text></svg>"))
    """

    def shown(options=""):
        displayed = kernel.must(px(cell, options)).displayed
        return [re.search(r"rank (\d) figure (\d)", d["image/svg+xml"]).groups() for d in displayed]

    by_rank = [(str(r), str(i)) for r in range(4) for i in range(2)]
    assert shown() == by_rank
    assert shown("--group-outputs=engine") == by_rank
    assert shown("--group-outputs=order") == sorted(by_rank, key=lambda pair: pair[1])


def test_displays_of_ranks_can_be_updated(kernel):
    cell = """
        from IPython.display import display, update_display
        shown = display(f"begun on {rank}", display_id=True)
        display("named", display_id="mine")
        shown.update(f"half on {rank}")
        shown.update(f"over on {rank}")
    """
    displayed = [d["text/plain"] for d in kernel.must(px(cell, "--targets 1,3")).displayed]
    assert displayed == ["'over on 1'", "'named'", "'over on 3'", "'named'"]

    later = []
    update = px("update_display(f'later on {rank}', display_id='mine')", "--targets 3")
    kernel.finish(kernel.begin(update), shown=later.append)
    assert later == ["'later on 3'"]


def test_ranks_can_clear_their_output(kernel):
    cell = """
        from IPython.display import clear_output
        print("first")
        display("first")
        clear_output({wait})
        {then}
    """
    for wait in (False, True):
        out = kernel.must(px(cell.format(wait=wait, then="print('then')"), "--targets 1"))
        assert (out.text(), out.displayed) == ("rank 1 | then\n", [])
    out = kernel.must(px(cell.format(wait=True, then=""), "--targets 1"))  # nothing comes next
    assert out.text().startswith("rank 1 | first\n")
    assert [d["text/plain"] for d in out.displayed] == ["'first'"]


@pytest.mark.parametrize(
    ("targets", "ranks"),
    [("2", [2]), ("-1", [3]), ("0,2", [0, 2]), ("2,0", [0, 2]), ("1:3", [1, 2]), ("all", range(4))],
)
def test_targets_select_ranks(kernel, targets, ranks):
    out = kernel.must(px("print(rank)", f"--targets {targets}")).text()
    assert out == "".join(f"rank {r} | {r}\n" for r in ranks)


@pytest.mark.parametrize("targets", ["4", "0,9", "x", "1:y"])
def test_unknown_targets_are_rejected(kernel, targets):
    error = kernel.run(px("print(rank)", f"--targets {targets}")).error
    assert error["ename"] == "ClusterError"
    assert targets in error["evalue"]


def test_noblock_returns_pending_results(kernel):
    pending = kernel.must(px("print('later'); rank", "--noblock -o pending"))
    assert pending.text() == ""
    shown = kernel.must("%pxresult").text()
    assert shown.splitlines()[3:5] == ["rank 3 | later", "rank 0 = 0"]
    assert kernel.must("print(len(pending.get()))").text() == "4\n"
    kernel.must(px("1 / 0", "--noblock"))
    assert kernel.run("%pxresult").error["ename"] == "RemoteCellError"


def test_options_of_a_line(kernel):
    here = "'rank' in globals()"
    assert kernel.must("%px --targets 0,2 print(rank)").text() == "rank 0 | 0\nrank 2 | 2\n"
    both = kernel.must("%px --limit=5 --targets=1:3  rank - -rank").text()
    assert both == "rank 1 = 2\nrank 2 = 4\n"
    assert kernel.must("%px --noblock --targets 0 print('later')").text() == ""
    assert kernel.must("%pxresult").text() == "rank 0 | later\n"
    local = kernel.must(f"%px --local --targets 0 print({here})").text()
    assert local == "False\nrank 0 | True\n"
    assert kernel.must("%px --targets 0 text = '--local'; text").text() == "rank 0 = '--local'\n"
    assert kernel.must("%px --targets 3 --rank").text() == "rank 3 = 3\n"
    error = kernel.run("%px --targets 9 print(rank)").error
    assert error["evalue"] == "--targets 9: the ranks are 0 to 3"


def test_local_runs_here_too(kernel):
    cell = "where = 'rank' if 'rank' in globals() else 'notebook'\nprint(where)"
    out = kernel.must(px(cell, "--local")).text().splitlines()
    assert out == ["notebook"] + [f"rank {r} | rank" for r in range(4)]
    assert kernel.run(px("assert 'rank' in globals()", "--local")).error["ename"] == (
        "AssertionError"
    )


def test_one_rank_raises(kernel):
    kernel.must(px("def divide(by):\n    return 1 / by"))
    out = kernel.run(px("print('before', rank)\nx = divide(rank - 2)"))
    assert out.text() == "".join(f"rank {r} | before {r}\n" for r in range(4))
    assert (out.error["ename"], out.error["evalue"]) == (
        "RemoteCellError",
        "rank 2: ZeroDivisionError: division by zero",
    )
    assert out.traceback.startswith("rank 2 raised:\n")
    assert out.traceback.endswith("ZeroDivisionError: division by zero\n\nranks 0, 1, 3: finished")
    assert "ipyparallel" not in out.traceback


def test_traceback_names_cell_and_line_of_the_notebook(kernel):
    number = int(kernel.must("print(len(In) - 1)").text())
    kernel.must(px("def fail():\n    raise ValueError(rank)"))
    traceback = kernel.run(px("x = 1\n\nfail()")).traceback
    assert f"Cell In[{number + 2}], line 4" in traceback
    assert f"Cell In[{number + 1}], line 3, in fail()" in traceback


def test_error_of_showing_a_value_names_its_line(kernel):
    out = kernel.run(px("class Value:\n    def __repr__(self):\n        return 1 / 0\nValue()"))
    assert out.error["evalue"] == "rank 0: ZeroDivisionError: division by zero"
    assert "----> 4         return 1 / 0" in out.traceback
    assert out.traceback.endswith("\nranks 1, 2, 3: ZeroDivisionError: division by zero")


def test_input_on_a_rank_says_where_to_call_it(kernel):
    out = kernel.run(px("import getpass\nname = getpass.getpass() if rank else input('Name? ')"))
    lines = out.traceback.splitlines()
    call = "name = getpass.getpass() if rank else input('Name? ')"
    assert f"StdinNotImplementedError in line 3 of its cell: {call}" in lines
    assert "a rank has no keyboard. Call input() in a cell without %%px" in out.error["evalue"]
    assert not any("kernelbase" in line for line in lines), out.traceback


def test_a_cell_right_after_a_failed_one_runs(kernel):
    """A kernel aborts requests that arrive just after a failure, here within half a second."""
    kernel.must("%px from ipykernel.kernelbase import Kernel")
    kernel.must("%px Kernel.instance().stop_on_error_timeout = 0.5")
    assert "ZeroDivisionError" in kernel.run("%px 1 / 0").error["evalue"]
    assert "rank 0 = 1\n" in kernel.must("%px 1").text()


def test_causes_come_before_consequences(kernel):
    cell = """
        class DeadlineError(RuntimeError): pass
        class RevokedError(RuntimeError): pass
        raise [RevokedError("freed"), DeadlineError("waited"), KeyError("cause"),
               RevokedError("freed")][rank]
    """
    out = kernel.run(px(cell))
    assert out.error["evalue"] == "rank 2: KeyError: 'cause'"
    assert out.traceback.splitlines()[-2:] == [
        "rank 1: DeadlineError: waited",
        "ranks 0, 3: RevokedError: freed",
    ]
    out = kernel.run(px("if rank < 2: raise [RevokedError, DeadlineError][rank](rank)"))
    assert out.error["evalue"] == "rank 1: DeadlineError: 1"
    assert out.traceback.splitlines()[-2:] == ["rank 0: RevokedError: 0", "ranks 2, 3: finished"]


def test_a_syntax_error_is_shown_once(kernel):
    out = kernel.run(px("ok = 1\nx = = 3"))
    assert out.error["evalue"] == "rank 0: SyntaxError: invalid syntax (line 3)"
    assert out.traceback.count("^") == 1
    assert out.traceback.splitlines()[-1].startswith("ranks 1, 2, 3: SyntaxError")


def test_magics_on_the_ranks(kernel):
    out = kernel.must(px("%%capture said\nprint('inside')")).text()
    assert out == ""
    assert kernel.must("%px said.stdout").text().startswith("rank 0 = 'inside\\n'")


def test_a_failing_cell_is_caught_as_ipyparallel_errors_are(kernel):
    code = """
        import ipyparallel
        try:
            get_ipython().run_cell_magic("px", "", "1 / 0")
        except ipyparallel.RemoteError as failure:
            print(failure.ename, failure.rank, len(failure.failures), failure.finished)
    """
    assert kernel.must(textwrap.dedent(code)).text() == "ZeroDivisionError 0 4 []\n"


@pytest.mark.parametrize(
    "cell",
    [
        "# a comment\n%%px --limit 5\nprint(rank)",
        "x = 1\n\n%%px --limit 5\nprint(rank)",
        "if True:\n    %%px --limit 5\n    print(rank)",
        "text = '''\n%%px\n'''\n%%px --limit 5  ",
        "%matplotlib inline\n!echo it's\n%%px --limit 5\nprint(rank)",
    ],
)
def test_px_below_the_first_line_is_rejected(kernel, cell):
    error = kernel.run(cell).error
    assert error["ename"] == "ClusterError"
    assert error["evalue"] == (
        "`%%px` has to be the first line of its cell, even above comments: "
        "move the line `%%px --limit 5` to the top"
    )
    assert error["traceback"] == [f"ClusterError: {error['evalue']}"]


@pytest.mark.parametrize(
    "cell",
    [
        "%%px\nprint('first')\n%%px --targets 0\nprint('second')",
        "%%px\n\n%%px --targets 0\nprint('second')",
        "\n  %%px\n  if rank:\n      %%px --targets 0\n      print('second')",
    ],
)
def test_second_px_in_a_cell_is_rejected(kernel, cell):
    out = kernel.run(cell)
    assert out.traceback == (
        "ClusterError: this cell has begun with `%%px`: put the second `%%px --targets 0` and what "
        "follows it into a cell of their own"
    )
    assert out.text() == ""


def test_other_cell_magic_below_the_first_line_is_rejected(kernel):
    error = kernel.run("# how long?\n%%time\n1 + 1").error
    assert error["evalue"].endswith("move the line `%%time` to the top")
    typed = kernel.must(r"print(get_ipython().check_complete('# how long?\n%%time\n'))").text()
    assert "complete" in typed, "nothing is said while somebody types"


@pytest.mark.parametrize(
    ("cell", "printed"),
    [
        ("\n\n  %%px --targets 0\n  print(rank)", "rank 0 | 0\n"),
        ("text = '''\n%%px\n'''\nprint(text)", "\n%%px\n\n"),
        ('print(f"""a\n%%px {1}\n""")', "a\n%%px 1\n\n"),
        ("print(7\n% 4)", "3\n"),
        ("# %%px\nprint(1)", "1\n"),
        ("%%capture said\n%%px\nprint(1)", ""),
        ("%%px --targets 0\n%%capture said\nprint(1)", ""),
        ("print('%%px')", "%%px\n"),
        ("%%px --targets 0\nprint('''\n%%px''')", "rank 0 |\nrank 0 | %%px\n"),
        ("%%px --targets 0\n%%bash\n: '\n%%px'", ""),
        ("%%bash\n: '\n%%px'", ""),
        ("print(5 \\\n% 3)", "2\n"),
    ],
)
def test_text_that_resembles_a_magic_runs_unchanged(kernel, cell, printed):
    assert kernel.must(cell).text() == printed


def test_names_on_the_ranks_complete_with_tab(kernel):
    kernel.must("%px only_on_the_ranks = torch.ones(2)")
    kernel.must("from ipyranks import completion; completion._WITHIN_S = 30")

    def completions(cell):
        reply = kernel.client.complete(cell, len(cell), reply=True, timeout=60)
        return reply["content"]["matches"]

    assert completions("%%px\nonly_on") == ["only_on_the_ranks"]
    assert completions("%px only_on") == ["only_on_the_ranks"]
    assert any(m.endswith(".flatten") for m in completions("%%px\nonly_on_the_ranks.flatt"))
    assert completions("only_on") == []


def test_unknown_signal_is_rejected_before_the_cell_is_sent(kernel):
    out = kernel.run("%%px --signal-on-interrupt SIGFOO\nis_sent = True")
    assert out.error["evalue"].startswith("--signal-on-interrupt SIGFOO: give a signal")
    assert "999 is not a signal" in kernel.run("cluster.signal(999)").error["evalue"]
    is_sent = kernel.must("%px 'is_sent' in globals()").text()
    assert is_sent == "".join(f"rank {r} = False\n" for r in range(4))


def interrupted(kernel, cell, wait_until, tmp_path):
    """Return the output of a cell that is interrupted once each rank has made its file."""
    running = kernel.begin(px(cell))
    wait_until(lambda: len(list(tmp_path.iterdir())) == 4, 40, "all ranks run the cell")
    kernel.interrupt()
    out = kernel.finish(running, within=30)
    assert out.error["ename"] == "KeyboardInterrupt"
    return out


def test_interrupt_reaches_the_ranks(kernel, wait_until, tmp_path):
    cell = f"""
        import pathlib, time
        print("started")
        pathlib.Path(r"{tmp_path}", str(rank)).touch()
        for _ in range(600):
            time.sleep(0.1)
    """
    out = interrupted(kernel, cell, wait_until, tmp_path)
    assert out.text() == "".join(f"rank {r} | started\n" for r in range(4))
    assert kernel.must("print(len(cluster.client.outstanding))").text() == "0\n"
    assert kernel.must("%px rank").text().startswith("rank 0 = 0")


def test_interrupt_names_a_rank_that_does_not_stop(kernel, wait_until, tmp_path):
    cell = f"""
        import pathlib, signal, time
        until = time.monotonic() + 50
        if rank == 1:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        pathlib.Path(r"{tmp_path}", str(rank)).touch()
        while time.monotonic() < until and not pathlib.Path(r"{tmp_path}", "end").exists():
            time.sleep(0.1)
    """
    out = interrupted(kernel, cell, wait_until, tmp_path)
    assert "the cell was interrupted, but rank 1 did not stop" in out.traceback
    assert "cluster.kill(1) and cluster.shrink() to continue with the others" in out.traceback
    (tmp_path / "end").touch()
    kernel.must("cluster.view.apply_sync(int);")


def test_failure_resets_communication_and_keeps_variables(kernel):
    kernel.must("%px comm.timeout = 25; kept = rank * 11")
    out = kernel.run(px("if rank == 3: raise ValueError('wrong')\ncomm.barrier()"))
    assert out.error["evalue"] == "rank 3: ValueError: wrong"
    assert "Communication is renewed" in out.text()
    out = kernel.must("%px comm.allreduce(1), comm.timeout, kept").text()
    assert out == "".join(f"rank {r} = (4, 25, {r * 11})\n" for r in range(4))
    kernel.must("cluster.reset_communication(timeout_s=20)")
    out = kernel.must("%px comm.allreduce(1), comm.timeout, kept").text()
    assert out == "".join(f"rank {r} = (4, 20, {r * 11})\n" for r in range(4))


def test_interrupt_frees_ranks_that_wait_for_a_message(kernel, wait_until, tmp_path):
    cell = f"""
        import pathlib
        pathlib.Path(r"{tmp_path}", str(rank)).touch()
        message = comm.recv(source=(rank + 1) % world_size)
    """
    out = interrupted(kernel, cell, wait_until, tmp_path)
    assert "interrupted on all ranks" in out.traceback
    assert "Communication is renewed" in out.text()
    assert kernel.must("%px comm.allreduce(1), kept").text().startswith("rank 0 = (4, 0)\n")


def test_a_cell_can_await(kernel):
    cell = """
        import asyncio
        async def later(x):
            await asyncio.sleep(0.01)
            return x
        lock = asyncio.Lock()
        async with lock:
            print(await asyncio.gather(later(rank), later(comm.allreduce(1))))
        await later(rank)
    """
    expected = "".join(f"rank {r} | [{r}, 4]\nrank {r} = {r}\n" for r in range(4))
    for _ in range(2):
        assert sorted(kernel.must(px(cell)).text().splitlines()) == sorted(expected.splitlines())
    out = kernel.run(px("x = 1\nawait later(1 / rank)"))
    assert out.error["evalue"] == "rank 0: ZeroDivisionError: division by zero"
    assert "line 3" in out.traceback
    assert "asyncio" not in out.traceback


@pytest.mark.parametrize(
    ("wait", "line"),
    [
        ("await asyncio.sleep(100)", 3),
        ("await asyncio.gather(asyncio.sleep(100), asyncio.sleep(90))", 3),
        ("await later(1); time.sleep(100)", 3),
        ("await asyncio.gather(blocked(), asyncio.sleep(100))", 8),
        ("await later(1); comm.recv(source=rank)", 3),
        ("await awaiting()", 10),
    ],
)
def test_an_awaiting_cell_ends_at_its_limit(kernel, wait, line):
    kernel.must(
        px("""
            import asyncio, time
            async def later(x):
                await asyncio.sleep(0.01)
                return x
            async def blocked():
                time.sleep(100)
            async def awaiting():
                await asyncio.sleep(100)
        """)
    )
    cell = f"try:\n    {wait}\nexcept KeyboardInterrupt as end:\n    why = end\n    raise"
    out = kernel.run(px(cell, "--limit 2"), within=40)
    assert out.error["ename"] == "HangError"
    assert "are free again" in out.traceback
    assert len(re.findall(rf"\n\d .*  cell \d+, line {line}\b", out.traceback)) == 4
    after = "%px type(why), len(asyncio.all_tasks()), await later(rank)"
    left = "(KeyboardInterrupt, 1, {})"  # that cell's own task
    assert kernel.must(after).text() == "".join(f"rank {r} = {left.format(r)}\n" for r in range(4))
    kernel.must("%px del why")
    assert kernel.must("%px rank").text() == "".join(f"rank {r} = {r}\n" for r in range(4))


def test_an_awaiting_cell_can_be_interrupted(kernel, wait_until, tmp_path):
    cell = f"""
        import asyncio, pathlib
        pathlib.Path(r"{tmp_path}", str(rank)).touch()
        await asyncio.sleep(100)
    """
    out = interrupted(kernel, cell, wait_until, tmp_path)
    assert "interrupted on all ranks" in out.traceback
    assert kernel.must("%px rank").text().startswith("rank 0 = 0\n")


def test_every_error_of_a_rank_reaches_the_notebook(kernel):
    """Here one of ipykernel's own, which lacks a thread to await in its own loop."""
    kernel.must("%px own_loop = get_ipython().loop_runner; import asyncio")
    kernel.must("%px get_ipython().run_line_magic('autoawait', 'asyncio')")
    out = kernel.run("%px await asyncio.sleep(0)", within=30)
    assert out.error["evalue"].startswith("rank 0: AttributeError: 'NoneType' object")
    assert kernel.must("%px rank").text().startswith("rank 0 = 0\n")
    kernel.must("%px get_ipython().loop_runner = own_loop")
    assert kernel.must("%px await asyncio.sleep(0, rank)").text().startswith("rank 0 = 0\n")


def test_a_value_of_a_class_of_the_ranks_is_an_error_in_the_notebook(kernel):
    define = "class Net:\n    width = 3\nnet = Net()"
    kernel.must(px(define))
    out = kernel.run("cluster.view['net']", within=30)
    says = "this value can't be brought to the notebook: Net is only defined on the ranks"
    assert says in out.error["evalue"]
    assert f"{says}; run the cell that defines it with %%px --local" in out.traceback
    assert kernel.must("print(len(cluster.client.outstanding))").text() == "0\n"
    kernel.must(px(define, "--local"))
    assert kernel.must("print([net.width for net in cluster.view['net']])").text() == (
        "[3, 3, 3, 3]\n"
    )
    refuse = """
        class Refuses:
            def __reduce__(self):
                return int, ("x",)
        refuses = Refuses()
    """
    kernel.must(px(refuse))
    out = kernel.run("cluster.client[1].pull('refuses', block=True)", within=30)
    assert "brought to the notebook: ValueError: invalid literal" in out.error["evalue"]
    assert kernel.must("%px rank").text().startswith("rank 0 = 0\n")


@pytest.mark.parametrize(
    ("program", "status", "says"),
    [("print(world.size, world.allreduce(1))", 0, "1 1\n"), ("world.Abort(3)", 3, "")],
)
def test_mpi_in_a_program_that_a_cell_starts_is_its_own(kernel, program, status, says):
    cell = f"""
        import subprocess, sys
        program = "from mpi4py import MPI; world = MPI.COMM_WORLD; {program}"
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=40)
        ended.returncode, ended.stdout, comm.allreduce(1)
    """
    for _ in range(2):
        out = kernel.must(px(cell)).text()
        assert out == "".join(f"rank {r} = {(status, says, 4)}\n" for r in range(4))


def test_a_forked_child_does_not_end_its_parents_cluster(kernel):
    code = """
        import os
        child = os.fork()
        if child == 0:
            try:
                exit_function = __import__("ipyranks.starting").starting._at_exit
                exit_function()
            finally:
                os._exit(0)
        os.waitpid(child, 0);
    """
    kernel.must(textwrap.dedent(code))
    assert kernel.must("%px rank").text().startswith("rank 0 = 0\n")


def test_live_output_is_in_rank_order_too(new_kernel, tmp_path):
    kernel = new_kernel(watched=True)
    kernel.start_cluster(2)
    # The ranks go on when the notebook has shown what it should show.
    go_on = f"""
        import pathlib, time
        def once_it_is_there(name):
            until = time.monotonic() + 40
            while not pathlib.Path(r"{tmp_path}", name).exists() and time.monotonic() < until:
                time.sleep(0.05)
    """
    kernel.must(px(go_on))
    cell = """
        for i in range(4):
            if rank: once_it_is_there("shown")
            print("step", i)
            once_it_is_there("shown")
        if rank: once_it_is_there("counted")
    """
    waits = r"1 of 2 ranks finished, (?:[2-9]|\d\d) s, waiting for 1"
    updates = []

    def shown(text: str) -> None:
        updates.append(text)
        (tmp_path / "shown").touch()
        if re.search(waits, text):
            (tmp_path / "counted").touch()

    out = kernel.finish(kernel.begin(px(cell)), shown=shown)
    final = "\n".join(f"rank {r} | step {i}" for r in range(2) for i in range(4))
    assert [o["output_type"] for o in out] == ["display_data"]
    assert updates[-1] == final
    assert "rank 0 | step 0" in updates[0]
    assert "step 3" not in updates[0]
    assert any(re.search(waits, update) for update in updates), updates
    # What ends before anything is shown live is printed; on a busy machine that takes longer.
    live_after = "from ipyranks import cells; cells._LIVE_AFTER_S"
    kernel.must(f"{live_after} = 30")
    assert kernel.must(px("print('quick')")).text() == "rank 0 | quick\nrank 1 | quick\n"
    kernel.must(f"{live_after} = 0.3")
    fails = px("print('a'); once_it_is_there('a'); x = 1 / (rank - 1)")
    failed = kernel.finish(kernel.begin(fails), shown=lambda text: (tmp_path / "a").touch())
    assert failed.error["evalue"] == "rank 1: ZeroDivisionError: division by zero"
    (output,) = [o for o in failed if o["output_type"] == "display_data"]
    assert [output["data"], *output["updates"]][-1] == {"text/plain": "rank 0 | a\nrank 1 | a"}
