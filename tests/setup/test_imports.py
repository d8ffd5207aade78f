"""Who may import whom: downwards only, and in no circle."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGES = {
    "torch_mpi4py": Path("packages/torch_mpi4py/src/torch_mpi4py"),
    "ipyranks": Path("packages/ipyranks/src/ipyranks"),
    "course_lib": Path("course_lib"),
    "rank_by_rank": Path("notebooks"),
}
# The rooms of the backend: what each may import besides itself, and the modules above all rooms.
ROOMS = {
    "board": set(),
    "core": set(),
    "log": {"board", "core"},
    "faults": {"board", "core", "log"},
    "meeting": {"board", "core", "faults", "log"},
    "exits": {"board", "core", "faults", "log", "meeting"},
    "comm": {"board", "core", "exits", "faults", "log", "meeting"},
    "tools": {"comm", "core", "faults", "log"},
    "group": {"board", "comm", "core", "exits", "faults", "log", "meeting", "tools"},
    "emulation": {"comm", "core", "faults"},
    "testing": {"board", "core"},
}
ABOVE_ALL_ROOMS = {"torch_mpi4py", "torch_mpi4py.api", "torch_mpi4py.registration"}
# What no module in these folders imports: they use the packages, as a learner's programs do.
NOT_FOR_PROGRAMS = {
    "benchmarks": {"rank_by_rank", "tests"},
    "scripts": {"rank_by_rank", "tests", "tools", "benchmarks"},
    "tools": {"rank_by_rank", "tests", "benchmarks"},
}
# A part may import those that it names here, and itself. All of the course may import the backend.
BELOW = {
    "torch_mpi4py": set(),
    "ipyranks": set(),
    "course_lib.cluster": {"ipyranks"},
    "course_lib.places": set(),
    "course_lib.surroundings": set(),
    "course_lib.parallel": set(),
    "course_lib.training": {"course_lib.places", "course_lib.parallel"},
    "course_lib.teaching": {
        *("ipyranks", "course_lib.places", "course_lib.parallel", "course_lib.training"),
    },
    "course_lib.doctor": {"ipyranks", "course_lib.places", "course_lib.training"},
    "course_lib.command": {
        *("course_lib.places", "course_lib.surroundings", "course_lib.teaching"),
    },
    "course_lib.html_page": set(),
    "course_lib.grading": {
        *("ipyranks", "course_lib.cluster", "course_lib.html_page", "course_lib.teaching"),
    },
    "course_lib.classroom": {"course_lib.html_page", "course_lib.teaching"},
    "rank_by_rank": {
        *("course_lib.cluster", "course_lib.places", "course_lib.parallel"),
        *("course_lib.training", "course_lib.teaching"),
    },
}
# The backend is for people who will never open a notebook.
NOT_FOR_THE_BACKEND = {"ipyparallel", "jupyter_client", "matplotlib", "nbformat", "ipykernel"}


def modules(root: Path) -> dict[str, Path]:
    """Return the modules of all packages, by name. A lesson's text is none."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = [package, *path.relative_to(root / folder).with_suffix("").parts]
            if parts[-1] == "__init__":
                parts.pop()
            if all(part.isidentifier() for part in parts):
                found[".".join(parts)] = path
    return found


def imports_of(name: str, path: Path) -> set[str]:
    """Return what a module imports, wherever in it, also for type checkers alone."""
    return _imports(name, path, ast.walk(ast.parse(path.read_text())))


def imports_when_run(name: str, path: Path) -> set[str]:
    """Return what a module imports, wherever in it, but for type checkers alone."""
    return _imports(name, path, _running(ast.parse(path.read_text())))


def _imports(name: str, path: Path, nodes: Iterable[ast.AST]) -> set[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                above = above[: len(above) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def _running(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _running(child)


def graph(
    known: dict[str, Path], imports: Callable[[str, Path], set[str]] = imports_of
) -> dict[str, set[str]]:
    """Return which of the known modules each one imports."""

    def module_of(name: str) -> str | None:
        while name and name not in known:
            name = name.rpartition(".")[0]
        return name or None

    return {
        name: {found for other in imports(name, path) if (found := module_of(other))} - {name}
        for name, path in known.items()
    }


def part_of(name: str) -> str:
    return ".".join(name.split(".")[:2]) if name.startswith("course_lib.") else name.split(".")[0]


def _root_of(name: str) -> set[str]:
    """Return the course's package itself, which holds nothing, where the course may be known."""
    return {"course_lib"} if name.startswith(("course_lib.", "rank_by_rank")) else set()


def test_imports_follow_the_layers(root: Path) -> None:
    wrong = [
        f"{name} imports {other}"
        for name, others in graph(modules(root)).items()
        for other in others
        if part_of(name) != "course_lib"
        and part_of(other) not in {part_of(name), *BELOW[part_of(name)], *_root_of(name)}
        and (part_of(other) != "torch_mpi4py" or part_of(name) == "torch_mpi4py")
    ]
    assert not wrong, "\n".join(wrong)


def test_backend_imports_no_notebook_packages(root: Path) -> None:
    known = modules(root)
    wrong = [
        f"{name} imports {other}"
        for name in known
        if name.startswith("torch_mpi4py")
        for other in imports_of(name, known[name])
        if other.split(".")[0] in {*NOT_FOR_THE_BACKEND, "ipyranks", "course_lib", "rank_by_rank"}
    ]
    assert not wrong, "\n".join(wrong)


def test_only_pytest_imports_the_pytest_plugin(root: Path) -> None:
    known = modules(root)
    plugin = "torch_mpi4py.testing"
    wrong = [
        f"{name} imports {other}"
        for name in known
        if not name.startswith(plugin)
        for other in imports_of(name, known[name])
        if other.split(".")[0] in {"pytest", "_pytest"} or other.startswith(plugin)
    ]
    assert not wrong, "\n".join(wrong)
    assert {f"{plugin}.plugin", f"{plugin}.crews"} <= known.keys()


def test_backend_subpackages_follow_their_layers(root: Path) -> None:
    """This includes imports for type checkers: a subpackage needs only those below it."""
    wrong = [
        f"{name} imports {other}"
        for name, others in graph(modules(root)).items()
        if name.startswith("torch_mpi4py.") and name not in ABOVE_ALL_ROOMS
        for other in others
        if other in ABOVE_ALL_ROOMS or room_of(other) not in {room_of(name), *room_below(name)}
    ]
    assert not wrong, "\n".join(wrong)
    TopologicalSorter(ROOMS).prepare()
    assert {room_of(name) for name in modules(root) if name.count(".") > 1} >= ROOMS.keys()


def room_of(name: str) -> str:
    """Return the room of a module of the backend, "" for launch, on which all may stand."""
    parts = name.split(".")
    return parts[1] if parts[1] in ROOMS else ""


def room_below(name: str) -> set[str]:
    return {"", *ROOMS[room_of(name)]} if room_of(name) else set()


def test_no_lesson_imports_another_lessons_package(root: Path) -> None:
    wrong = [
        f"{path.relative_to(root)} imports {other}"
        for path in sorted((root / "notebooks").glob("lesson_*/*.py"))
        for other in imports_of(f"rank_by_rank.{path.parent.name}.{path.stem}", path)
        if other.startswith("rank_by_rank.lesson_") and other.split(".")[1] != path.parent.name
    ]
    assert not wrong, "\n".join(wrong)


def test_programs_import_no_lesson_packages_or_tests(root: Path) -> None:
    wrong = [
        f"{path.relative_to(root)} imports {other}"
        for folder, forbidden in NOT_FOR_PROGRAMS.items()
        for path in sorted((root / folder).rglob("*.py"))
        for other in imports_of(f"{folder}.{path.stem}", path)
        if other.split(".")[0] in forbidden
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_have_no_cycles(root: Path) -> None:
    """Neither do the backend's imports for type checkers."""

    def imports(name: str, path: Path) -> set[str]:
        for_all = name.startswith("torch_mpi4py")
        return imports_of(name, path) if for_all else imports_when_run(name, path)

    edges = graph(modules(root), imports)
    # A package's __init__ gathers what its modules have; what counts is the modules' own.
    gathering = {name for name, path in modules(root).items() if path.name == "__init__.py"}
    own = {name: others - gathering for name, others in edges.items() if name not in gathering}
    try:
        TopologicalSorter(own).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_type_checking_imports_are_distinguished(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text("if TYPE_CHECKING:\n    import tests.ranks\n")
    assert imports_of("m", module) == {"tests.ranks"}
    assert imports_when_run("m", module) == set()


@pytest.mark.parametrize(
    "line",
    [
        "import course_lib.teaching.check",
        "from course_lib.teaching import check",
        "from ..teaching import check",
        "from ..teaching.check import check",
    ],
)
def test_every_kind_of_import_is_found(tmp_path: Path, line: str) -> None:
    module = tmp_path / "m.py"
    module.write_text(f"def f():\n    {line}\n")
    found = imports_of("course_lib.parallel.m", module)
    assert {name.split(".")[1] for name in found} == {"teaching"}


def test_import_cycles_are_detected(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from .b import f\n")
    (tmp_path / "b.py").write_text("def f():\n    from . import a\n")
    edges = graph({"p.a": tmp_path / "a.py", "p.b": tmp_path / "b.py"})
    with pytest.raises(CycleError):
        TopologicalSorter(edges).prepare()
