"""The plugin: tests marked ``@pytest.mark.ranks(n)`` run on ``n`` ranks.

In pytest's own process a marked test is not run: it is sent to a crew of ranks, with no fixture
set up here. Each rank runs it in a pytest of its own (:mod:`.on_rank`), and their reports become
one. Nothing here imports torch or MPI.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from _pytest.skipping import evaluate_skip_marks

from .marks import DESCRIPTION, MANY, RanksMark

_SOCKET = "RANKS_SOCKET"  # as in .crews, which is imported only where ranks are started
_MOST_RANKS = 8  # that are kept: each takes as much memory as an import of torch
# Options of pytest itself, and of plugins, that concern only this process: which tests run, how
# they are reported, measured or distributed. Ranks use all others.
_NOT_FOR_RANKS = {
    *("file_or_dir", "keyword", "markexpr", "maxfail", "plugins", "xmlpath", "junitprefix"),
    *("basetemp", "collectonly", "capture", "usepdb", "usepdb_cls", "trace", "lf", "failedfirst"),
    *("last_failed_no_failures", "newfirst", "stepwise", "stepwise_skip", "stepwise_reset"),
    *("cacheclear", "cacheshow", "deselect", "ignore", "ignore_glob", "collect_in_virtualenv"),
    *("numprocesses", "dist", "tx", "px", "maxprocesses", "looponfail", "rsyncdir", "distload"),
    *("maxworkerrestart", "testrunuid", "pastebin", "durations", "durations_min", "log_file"),
    *("setuponly", "setupplan", "setupshow", "showfixtures", "show_fixtures_per_test", "version"),
    *("help", "timeout", "session_timeout", "override_ini", "inifilename", "rootdir", "markers"),
    *("strict", "strict_config", "strict_markers", "traceconfig", "debug", "keepduplicates"),
    *("doctestmodules", "doctestglob", "pyargs", "importmode", "noconftest", "confcutdir"),
}


_ENDS_PYTEST = (KeyboardInterrupt, pytest.exit.Exception)
_AS_PYTEST_HAS_IT: dict[str, Literal["passed", "failed", "skipped"]] = {
    "passed": "passed",
    "failed": "failed",
    "skipped": "skipped",
    "xfailed": "skipped",
    "xpassed": "passed",
}


class Hooks:
    """Hooks that a conftest.py may implement."""

    @pytest.hookspec(firstresult=True)
    def pytest_ranks_variables(self, item: pytest.Item) -> Mapping[str, str] | None:
        """Return more variables for the environment of a test's ranks.

        They also choose the MPI: ``TORCH_MPI4PY_MPIEXEC`` and ``MPI4PY_LIBMPI``. Tests with
        different variables have different ranks.
        """


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Make the hooks known."""
    pluginmanager.add_hookspecs(Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Make the settings known."""
    parser.addini(
        "ranks_backend", "backend of the default group in tests on ranks; empty: none", default=""
    )
    parser.addini("ranks_timeout", "seconds that a test on ranks may take", default="60")


@pytest.hookimpl(tryfirst=True)  # before temporary folders and captured output have their places
def pytest_configure(config: pytest.Config) -> None:
    """Decide whether this process is a rank."""
    config.addinivalue_line("markers", DESCRIPTION)
    address = os.environ.pop(_SOCKET, None)  # a pytest that a rank starts is not a rank
    if address is None:
        config.pluginmanager.register(OnController(config), "torch_mpi4py_controller")
        return
    from .on_rank import OnRank

    config.pluginmanager.register(OnRank(config, address), "torch_mpi4py_rank")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each number of ranks, where there are several."""
    mark = RanksMark.of(metafunc.definition)
    if mark is not None and len(mark.sizes) > 1:
        metafunc.fixturenames.append(MANY)
        ids = [f"{size} ranks" for size in mark.sizes]
        metafunc.parametrize(MANY, mark.sizes, indirect=True, ids=ids)


@pytest.fixture
def number_of_ranks(request: pytest.FixtureRequest) -> int:
    """Return the number of ranks of this test, where its mark has several."""
    return request.param


@pytest.fixture(scope="session")
def rank(pytestconfig: pytest.Config) -> int:
    """Return the rank of this process, in a test marked ranks."""
    return _on_rank(pytestconfig).rank


@pytest.fixture(scope="session")
def size(pytestconfig: pytest.Config) -> int:
    """Return the number of ranks, in a test marked ranks."""
    return _on_rank(pytestconfig).size


@pytest.fixture(scope="session")
def world_size(size: int) -> int:
    """Return the number of ranks, in a test marked ranks, by its name in torch.distributed."""
    return size


def _on_rank(config: pytest.Config) -> Any:
    here = config.pluginmanager.get_plugin("torch_mpi4py_rank")
    if here is None:
        pytest.fail("rank and size are for tests marked @pytest.mark.ranks(n)", pytrace=False)
    return here


class OnController:
    """The plugin in pytest's own process.

    Args:
        config: pytest's.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._crews: dict[tuple[Any, ...], Any] = {}  # the most recently used one is last
        self._bad_ends: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Refuse marks that make no sense before anything runs."""
        for item in items:
            mark = RanksMark.of(item)
            if mark is not None:
                mark.size(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        """Run a marked test on its ranks."""
        mark = RanksMark.of(item)
        if mark is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, nextitem, mark):
            item.ihook.pytest_runtest_logreport(report=report)
        # Fixtures that an earlier test left set up, such as its folder, end here.
        item.session._setupstate.teardown_exact(nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    # --- one test -------------------------------------------------------------------------

    def _reports(
        self, item: pytest.Item, nextitem: pytest.Item | None, mark: RanksMark
    ) -> list[pytest.TestReport]:
        from .failure_text import verdict

        if skip := evaluate_skip_marks(item):  # which needs no ranks
            report = _report(item, "setup")
            path, line, _ = item.location
            report.outcome, report.longrepr = "skipped", (path, line or 0, skip.reason)
            return [report, _report(item, "teardown")]
        began = time.time()
        run = pytest.CallInfo.from_call(
            lambda: self._run(item, nextitem, mark),
            "call",
            (KeyboardInterrupt, pytest.exit.Exception),
        )
        if run.excinfo is not None:
            return [_report(item, "setup"), pytest.TestReport.from_item_and_call(item, run)]
        result, user_properties = run.result, []
        reports: dict[int, Sequence[pytest.TestReport]] = {
            one.rank: [self._read(report) for report in one.reports] for one in result.answers
        }
        if reports[0]:
            user_properties = reports[0][-1].user_properties
        said = verdict(result, reports)
        call = _report(item, "call", began, result.seconds)
        call.sections, call.user_properties = list(said.sections), user_properties
        end = _report(item, "teardown")
        end.sections = call.sections  # --junitxml takes them from here
        call.outcome = _AS_PYTEST_HAS_IT[said.outcome]
        if said.outcome in ("xfailed", "xpassed"):
            call.wasxfail = said.text
        elif said.outcome == "skipped":
            call.longrepr = said.place
        elif said.outcome == "failed":
            call.longrepr = _Failure(item, said.text, said.headline)  # type: ignore[assignment]
        if self._config.getoption("capture") == "no":
            self._show(said.sections)
        return [_report(item, "setup"), call, end]

    def _read(self, report: dict[str, Any]) -> Any:
        return self._config.hook.pytest_report_from_serializable(config=self._config, data=report)

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None, mark: RanksMark) -> Any:
        from .crews import CrewError

        key = self._key(item, mark)
        follows = nextitem is not None and self._follows(key, nextitem)
        order = {
            "file": str(item.path),
            "test": item.nodeid,
            "next_file": str(nextitem.path) if follows and nextitem else "",
            "next_test": nextitem.nodeid if follows and nextitem else "",
            "tmp_path": str(self._folder(item)),
        }
        try:
            crew = self._crew(key)
        except CrewError as error:
            pytest.fail(str(error), pytrace=False)
        try:
            return crew.run(order, mark.seconds)
        finally:
            if crew.spoilt:
                self._close(key)

    def _follows(self, key: tuple[Any, ...], item: pytest.Item) -> bool:
        mark = RanksMark.of(item)
        return mark is not None and self._key(item, mark) == key

    def _folder(self, item: pytest.Item) -> Path:
        """Make a folder for one test, where pytest makes its own."""
        factory: pytest.TempPathFactory = self._config._tmp_path_factory  # type: ignore[attr-defined]
        name = "".join(c if c.isalnum() or c == "_" else "_" for c in item.name)
        return factory.mktemp(name[:30], numbered=True)

    @staticmethod
    def _show(sections: Any) -> None:
        for title, text in sections:
            print(f"\n--- {title} ---\n{text}")

    # --- crews ----------------------------------------------------------------------------

    def _key(self, item: pytest.Item, mark: RanksMark) -> tuple[Any, ...]:
        variables = self._config.hook.pytest_ranks_variables(item=item) or {}
        return mark.size(item), tuple(sorted(variables.items()))

    def _crew(self, key: tuple[Any, ...]) -> Any:
        from .crews import Crew

        crew = self._crews.pop(key, None)
        if crew is None:
            size, variables = key
            while self._crews and sum(one[0] for one in self._crews) + size > _MOST_RANKS:
                self._close(next(iter(self._crews)))
            crew = Crew(
                size,
                self._arguments(),
                dict(variables),
                self._options(),
                self._config.invocation_params.dir,
            )
        self._crews[key] = crew
        return crew

    def _arguments(self) -> list[str]:
        """Return those with which a rank's pytest collects the same tests as this one."""
        config, option = self._config, self._config.option
        given = [f"--rootdir={config.rootpath}", f"--import-mode={option.importmode}"]
        given += ["-c", str(config.inipath)] if config.inipath else []
        given += ["--noconftest"] if option.noconftest else []
        given += [f"--confcutdir={option.confcutdir}"] if option.confcutdir else []
        for name in ("no:terminal", "no:cacheprovider", *(option.plugins or [])):
            given += ["-p", name]
        for setting in option.override_ini or []:
            given += ["-o", setting]
        given += ["-o", "addopts="]  # this process has them
        if config.pluginmanager.hasplugin("timeout"):
            given += ["-o", "timeout=0"]  # the time here is what counts
        for warning in option.pythonwarnings or []:
            given += ["-W", warning]
        return [*given, "--capture=no", *config.args]

    def _options(self) -> dict[str, Any]:
        """Return the options of other plugins and of a conftest.py that JSON can hold."""
        options = vars(self._config.option).items()
        return {name: value for name, value in options if _is_for_ranks(name, value)}

    def _close(self, key: tuple[Any, ...]) -> None:
        if bad_end := self._crews.pop(key).close():
            self._bad_ends.append(bad_end)

    def _close_all(self) -> None:
        for key in list(self._crews):
            self._close(key)

    # --- the end --------------------------------------------------------------------------

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End all ranks; the run fails if some do not end well."""
        self._close_all()
        if hasattr(self._config, "workeroutput"):  # of pytest-xdist
            self._config.workeroutput["ranks_bad_ends"] = self._bad_ends
        elif self._bad_ends and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn from pytest-xdist how the ranks of one of its workers ended."""
        self._bad_ends += getattr(node, "workeroutput", {}).get("ranks_bad_ends", [])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Report which ranks did not end well."""
        for text in self._bad_ends:
            terminalreporter.section("ranks that did not end cleanly", red=True)
            terminalreporter.write_line(text)


class _Failure:
    """A test's failure, as pytest shows it: its text, and one line for the summary."""

    def __init__(self, item: pytest.Item, text: str, headline: str) -> None:
        self.text = text
        path, line, _ = item.location
        self.reprcrash = SimpleNamespace(message=headline, path=path, lineno=line)

    def __str__(self) -> str:
        return self.text

    def toterminal(self, tw: Any) -> None:
        """Write the text."""
        tw.line(self.text)


def _report(
    item: pytest.Item, when: Any, began: float = 0.0, seconds: float = 0.0
) -> pytest.TestReport:
    keywords: dict[str, Literal[1]] = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(
        item.nodeid,
        item.location,
        keywords,
        "passed",
        None,
        when,
        duration=seconds,
        start=began or time.time(),
        stop=(began or time.time()) + seconds,
    )


def _is_for_ranks(name: str, value: object) -> bool:
    if name in _NOT_FOR_RANKS or name.startswith(("cov", "no_cov", "nbval", "html", "benchmark")):
        return False
    try:
        return json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False
