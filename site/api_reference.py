"""The directive ``api``: a module's public names, from its docstrings and signatures.

griffe reads the sources without importing them, so the site needs neither PyTorch nor MPI; a name
that a package offers from one of its modules appears under the package, as one imports it.
napoleon, which comes with Sphinx, turns docstrings into reStructuredText.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

import griffe
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.util.docutils import SphinxDirective

HIDDEN_DEFAULT = 40  # characters; a longer default is shown as "..."


class ApiError(Exception):
    """A name of the reference is not in the sources."""


class Api(SphinxDirective):
    """``.. api:: package.module``; further words choose names of the module."""

    required_arguments = 1
    optional_arguments = 50

    def run(self) -> list[nodes.Node]:
        """Return the described module."""
        module = found(self.arguments[0], tuple(self.config.api_folders))
        for path in source_files(module):
            self.env.note_dependency(path)
        lines = list(described_module(module, self.arguments[1:], self.config))
        return self.parse_text_to_nodes("\n".join(lines))


@cache
def found(path: str, folders: tuple[str, ...]) -> Any:
    """Return the module of a dotted path; its whole package is read once."""
    collection = loaded(path.partition(".")[0], folders)
    try:
        return collection[path.partition(".")[2]] if "." in path else collection
    except KeyError:
        raise ApiError(f"there is no module {path}") from None


@cache
def loaded(package: str, folders: tuple[str, ...]) -> Any:
    """Return a package with everything in it."""
    return griffe.load(package, search_paths=list(folders), allow_inspection=False)


def source_files(module: Any) -> Iterator[str]:
    """Yield the files of a module, or of a package and its modules."""
    yield str(module.filepath)
    for inner in module.modules.values():
        if not inner.is_alias:
            yield from source_files(inner)


# ---- what is public -----------------------------------------------------------------------------


def public_names(module: Any) -> list[str]:
    """Return what a module offers: its ``__all__``, or what it defines without an underscore."""
    homes = lazily_offered(module)
    if homes:
        return list(homes)
    if module.exports is not None:
        return [str(getattr(name, "name", name)) for name in module.exports]
    own = [name for name, member in module.members.items() if is_described(name, member)]
    return sorted(own, key=lambda name: module.members[name].lineno)


def is_described(name: str, member: Any) -> bool:
    """Tell whether a module or class describes a member as its own."""
    if name.startswith("_") or member.is_alias or member.is_module:
        return False
    return bool(member.docstring) or member.is_class


def lazily_offered(module: Any) -> dict[str, str]:
    """Return names and homes of a package that imports them at first use (its ``_HOMES``)."""
    if "_HOMES" not in module.members:
        return {}
    return ast.literal_eval(str(module.members["_HOMES"].value))


def member_of(module: Any, name: str) -> Any:
    """Return what ``module.name`` is, wherever it is defined; None if it is another project's."""
    homes = lazily_offered(module)
    owner = module[homes[name]] if name in homes else module
    if name not in owner.members:
        raise ApiError(f"{module.path} has no {name}")
    member = owner.members[name]
    try:
        return member.final_target if member.is_alias else member
    except griffe.AliasResolutionError:
        return None


# ---- reStructuredText ---------------------------------------------------------------------------


def described_module(module: Any, names: list[str], config: Any) -> Iterator[str]:
    """Yield a module's docstring and each of its public names."""
    yield from (f".. py:module:: {module.path}", "")
    yield from docstring_of(module, config, "module")
    members = [(name, member_of(module, name)) for name in names or public_names(module)]
    # Not mpi4py's MPI, and no modules, which have pages of their own; errors last.
    shown = [(n, member) for n, member in members if member is not None and not member.is_module]
    for name, member in sorted(shown, key=lambda each: is_error(*each)):
        yield from described(name, member, config, "")


def described(name: str, member: Any, config: Any, indent: str) -> Iterator[str]:
    """Yield the description of a class, function, property or value."""
    directive, signature, options = heading(name, member, inside=bool(indent))
    yield f"{indent}.. py:{directive}:: {signature}"
    yield from (f"{indent}   :{option}" for option in options)
    yield ""
    inner = indent + "   "
    kind = "class" if member.is_class else directive
    yield from (f"{inner}{line}".rstrip() for line in docstring_of(member, config, kind))
    if member.is_class:
        in_words = attributes_in_docstring(member)
        for own, each in sorted(member.members.items(), key=lambda item: item[1].lineno or 0):
            if own not in in_words and (is_described(own, each) or own == "__call__"):
                yield from described(own, each, config, inner)


def heading(name: str, member: Any, *, inside: bool) -> tuple[str, str, list[str]]:
    """Return directive, signature and options for a name."""
    if member.is_class:
        if is_error(name, member):
            return "exception", name, []
        start = constructor(member)
        return "class", name + ("" if start is None else parameters(start, skip_first=True)), []
    if member.is_function:
        labels = member.labels
        wrapped = {str(each.value).rpartition(".")[2] for each in member.decorators}
        options = [word for word in ("classmethod", "staticmethod") if word in labels | wrapped]
        options += ["async:"] * ("async" in labels)
        returns = f" -> {member.returns}" if member.returns is not None else ""
        skip_first = inside and "staticmethod" not in options
        signature = f"{name}{parameters(member, skip_first=skip_first)}{returns}"
        return "method" if inside else "function", signature, [f"{o}:" for o in options]
    options = [f"type: {member.annotation}"] if member.annotation is not None else []
    if "property" in member.labels:
        return "property", name, options
    value = str(member.value) if member.value is not None else ""
    if value and len(value) <= HIDDEN_DEFAULT and "\n" not in value and not inside:
        options.append(f"value: {value}")
    return "attribute" if inside else "data", name, options


def is_error(name: str, member: Any) -> bool:
    """Tell whether a class is an exception, by its name or those above it."""
    names = [name, *(str(base) for base in member.bases)] if member.is_class else []
    return any(each.endswith(("Error", "Exception")) for each in names)


def constructor(member: Any) -> Any:
    """Return the ``__init__`` that a class, or the nearest class above it, defines."""
    if "__init__" in member.members:
        return member.members["__init__"]
    return member.all_members.get("__init__")


def parameters(function: Any, *, skip_first: bool) -> str:
    """Return a signature's parameters in brackets."""
    empty = inspect.Parameter.empty
    kinds = {kind.value: kind for kind in griffe.ParameterKind}
    python = {
        kinds["positional-only"]: inspect.Parameter.POSITIONAL_ONLY,
        kinds["positional or keyword"]: inspect.Parameter.POSITIONAL_OR_KEYWORD,
        kinds["variadic positional"]: inspect.Parameter.VAR_POSITIONAL,
        kinds["keyword-only"]: inspect.Parameter.KEYWORD_ONLY,
        kinds["variadic keyword"]: inspect.Parameter.VAR_KEYWORD,
    }
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    made = []
    for each in list(function.parameters)[skip_first:]:
        kind = python[each.kind]
        default = empty if each.default is None or kind in variadic else Verbatim(each.default)
        note = empty if each.annotation is None else Verbatim(each.annotation)
        name = each.name.lstrip("*")
        made.append(inspect.Parameter(name, kind, default=default, annotation=note))
    return str(inspect.Signature(made))


class Verbatim:
    """Source text that a signature shows as it is."""

    def __init__(self, text: object) -> None:
        self.text = str(text)

    def __repr__(self) -> str:
        return self.text if len(self.text) <= HIDDEN_DEFAULT * 4 else "..."


def docstring_of(member: Any, config: Any, kind: str) -> list[str]:
    """Return a docstring as lines of reStructuredText."""
    if not member.docstring:
        return []
    text = inspect.cleandoc(member.docstring.value)
    made = GoogleDocstring(text, config, what=kind).lines()  # a line of it may hold several
    return [*"\n".join(made).split("\n"), ""]


def attributes_in_docstring(member: Any) -> set[str]:
    """Return the attributes that a class's docstring describes."""
    if not member.docstring:
        return set()
    sections = member.docstring.parse("google", warnings=False)
    described = [s for s in sections if s.kind is griffe.DocstringSectionKind.attributes]
    return {each.name for section in described for each in section.value}


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive to Sphinx."""
    app.add_config_value("api_folders", [], "env")
    app.add_directive("api", Api)
    return {"version": "1", "parallel_read_safe": True}
