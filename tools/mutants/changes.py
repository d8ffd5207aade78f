"""Changes an answer as a learner might get it wrong: one change gives one mutant.

An answer is read by :mod:`ast`. Each rule below looks at one expression or statement, and yields
what a learner might have written there; the rest of the answer stays the same. Annotations,
imports, seeds and the texts of errors are left alone.

mutmut and cosmic-ray change modules, and run a suite of tests in a process for each mutant; an
answer is a cell in Markdown, its test is the check of an exercise, and hundreds of them share one
cluster. Their rules know nothing of ranks either. So this uses only the standard library.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

RANKS = 4  # of the cluster on which answers are tried

# Code that spoils arguments after the answer is there. If it can change nothing, it raises an
# error with NOTHING_TO_CHANGE, and there is no such mutant.
NOTHING_TO_CHANGE = "no argument of this function can be changed in place"
_SPOIL = "changes_its_arguments"
_SPOILING = f'''\
def {_SPOIL}(function):
    import numpy, sys

    def spoil(one):
        torch = sys.modules.get("torch")
        if torch and isinstance(one, torch.Tensor) and one.numel() and not one.requires_grad:
            one.copy_(~one if one.dtype == torch.bool else one + 1)
        elif isinstance(one, numpy.ndarray) and one.size and one.flags.writeable:
            one[...] = one[::-1] if one.dtype.kind in "OUS" else one + 1
        elif isinstance(one, list) and one:
            one.append(one[0])
        elif isinstance(one, dict) and one:
            one.popitem()
        else:
            return False
        return True

    def changed(*arguments, **named):
        answer = function(*arguments, **named)
        if not sum([spoil(one) for one in (*arguments, *named.values()) if one is not answer]):
            raise TypeError("{NOTHING_TO_CHANGE}")
        return answer

    return changed
'''


@dataclass(frozen=True)
class Mutant:
    """An answer with one change.

    Attributes:
        answer: the style of the right answer, or "the solution".
        kind: what a learner did, such as "wait left out".
        code: the whole cell.
        old: the lines that the change removes, as :func:`ast.unparse` writes them, stripped.
        new: those that it puts in their place.
    """

    exercise: str
    answer: str
    kind: str
    code: str
    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def change(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Its identity, in whichever answer to the exercise it is made."""
        return self.old, self.new

    def place(self, seed: int) -> bytes:
        """Return its place in a sample, which a change of another line does not move."""
        text = repr((seed, self.exercise, self.old, self.new))
        return hashlib.sha256(text.encode()).digest()


def mutants(exercise: str, answers: dict[str, str], function: str) -> list[Mutant]:
    """Return all mutants of the answers to an exercise, each change once.

    Args:
        answers: style -> the cell.
        function: the name of the function that the check calls.
    """
    found: dict[Any, Mutant] = {}
    for answer, cell in answers.items():
        tree = _without_docstrings(ast.parse(cell.removeprefix("%%px\n")))
        before = ast.unparse(tree).splitlines()
        for kind, code in changed(tree, function):
            after = code.splitlines()
            old, new = difference(before, after)
            if not old and not new:
                continue
            whole = f"{_SPOILING}\n{code}" if f"@{_SPOIL}" in new else code
            mutant = Mutant(exercise, answer, kind, whole + "\n", old, new)
            found.setdefault((answer, code), mutant)
    once: dict[Any, Mutant] = {}
    for mutant in found.values():
        once.setdefault(mutant.change, mutant)
    return list(once.values())


def difference(
    before: Sequence[str], after: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines from the first to the last that differ, stripped.

    If lines were only added, the next line that is the same in both shows where.
    """
    shorter = min(len(before), len(after))
    start = next((n for n in range(shorter) if before[n] != after[n]), shorter)
    end = next((n for n in range(shorter - start) if before[-1 - n] != after[-1 - n]), None)
    end = shorter - start if end is None else end
    if end and start + end == len(before) < len(after):
        end -= 1
    old, new = (
        tuple(line.strip() for line in lines[start : len(lines) - end]) for lines in (before, after)
    )
    return old, () if new == ("pass",) else new


def changed(tree: ast.Module, function: str) -> Iterator[tuple[str, str]]:
    """Yield the learner's mistake, and the text of the whole tree after it."""
    for parent, field, number, node in places(tree):
        if isinstance(node, ast.expr):
            for kind, text in instead_of(node, parent, field):
                new = _slice(text) if isinstance(node, ast.Slice) else _expression(text)
                yield kind, _with(tree, parent, field, number, [new])
        elif isinstance(node, ast.stmt):
            if _ends(parent, node):
                continue  # as the function does there anyway
            for kind, text in in_place_of(node):
                yield kind, _with(tree, parent, field, number, ast.parse(text).body)
        elif isinstance(node, ast.comprehension) and node.ifs:
            kept, node.ifs = node.ifs, []
            yield "condition left out", ast.unparse(tree)
            node.ifs = kept
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            yield from _swapped(tree, statement)
            if statement.name == function:
                yield from of_the_function(tree, statement)


# ---- where something may change ---------------------------------------------------------------


def places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Yield parent, field, place in the field and node of everything that a rule may change."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for number, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _left_alone(child):
                continue
            if field == "args" and (_is_seed(node) or (number == 1 and _is_rounding(node))):
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue
            yield node, field, number, child
            if isinstance(child, ast.Assert):
                continue
            yield from places(child)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _left_alone(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr)


def _ends(parent: ast.AST, node: ast.AST) -> bool:
    """Return whether it is the return at the end of a function."""
    last = parent.body[-1] if isinstance(parent, ast.FunctionDef) else None
    return node is last and isinstance(node, ast.Return)


def _is_seed(node: ast.AST) -> bool:
    """Return whether any number given to it is as good as another."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
        ("Random", "manual_seed", "default_rng")
    )


def _is_rounding(node: ast.AST) -> bool:
    """Return whether its second argument is a number of digits, of which a few suffice."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "round"


def _with(tree: ast.Module, parent: ast.AST, field: str, number: int | None, new: list[Any]) -> str:
    """Return the text of the tree with something else in one place."""
    kept = getattr(parent, field)
    if number is None:
        setattr(parent, field, new[0])
    else:
        setattr(parent, field, [*kept[:number], *new, *kept[number + 1 :]])
    try:
        return ast.unparse(tree)
    finally:
        setattr(parent, field, kept)


def _expression(text: str) -> ast.expr:
    return ast.parse(f"({text})", mode="eval").body


def _slice(text: str) -> ast.expr:
    subscript = _expression(f"_[{text}]")
    assert isinstance(subscript, ast.Subscript)
    return subscript.slice


# ---- expressions ------------------------------------------------------------------------------

_TOLERANCE = 1e-5  # below it, any other number is as good

_TURNED: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
_OTHERWISE: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "/",
    ast.Mod: "//",
    ast.Pow: "*",
    ast.BitXor: "+",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
_OTHER_FUNCTIONS = {
    "min": "max",
    "max": "min",
    "sum": "max",
    "sorted": "list",
    "reversed": "list",
    "abs": "",
    "round": "int",
    "math.ceil": "math.floor",
    "math.floor": "math.ceil",
}
_COPIES = (
    *("list", "tuple", "dict", "set", "float", "int", "np.array", "copy.copy", "copy.deepcopy"),
)
_COPIES_OF_ITSELF = ("clone", "copy", "detach", "item", "tolist", "contiguous", "double", "float")
_OTHER_METHODS = {"mean": "sum", "sum": "mean", "double": "float", "add_": "sub_"}
_OTHER_NAMES = {
    "float64": "float32",
    "float32": "float64",
    "bfloat16": "float16",
    "int64": "int32",
    "AVG": "SUM",
    "SUM": "MAX",
    "ANY_SOURCE": "PROC_NULL",
}
_SIZES = ("comm.size", "comm.Get_size()", "group.size()")
# Their first argument takes the result: in a copy it is lost.
_INTO_THE_FIRST = {
    "dist": {"all_reduce", "broadcast", "reduce", "recv", "irecv", "all_gather_into_tensor"}
    | {"reduce_scatter", "reduce_scatter_tensor", "all_to_all_single"},
    "comm": {"Recv", "Irecv", "Bcast", "Sendrecv_replace"},
}
_NOT_LEFT_OUT = ("strict", "key", "async_op", "lr", "momentum")


def instead_of(node: ast.expr, parent: ast.AST, field: str) -> Iterator[tuple[str, str]]:
    """Yield what a learner might write in place of an expression, and the mistake in it."""
    text = ast.unparse(node)
    match node:
        case ast.Constant(value=bool(value)):
            yield "True for False", str(not value)
        case ast.Constant(value=int(value)):
            yield "constant by one", str(value + 1)
            if value > 0:
                yield "constant by one", str(value - 1)
        case ast.Constant(value=float(value)) if value == 0 or value > _TOLERANCE:
            yield "constant doubled", str(2 * value or 1.0)
        case ast.Compare():
            yield from _turned(node)
        case ast.BinOp():
            yield from _computed(node)
        case ast.BoolOp(op=op, values=[*values]):
            word = "or" if isinstance(op, ast.And) else "and"
            yield "and for or", f" {word} ".join(f"({ast.unparse(one)})" for one in values)
            for number in range(len(values)):
                rest = [one for place, one in enumerate(values) if place != number]
                yield "case left out", ast.unparse(ast.BoolOp(op, rest) if rest[1:] else rest[0])
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "sign left out", ast.unparse(operand)
        case ast.IfExp(body=body, orelse=orelse):
            yield "branch left out", ast.unparse(body)
            yield "branch left out", ast.unparse(orelse)
        case ast.Call():
            yield from _called(node, text)
        case ast.Slice():
            yield from _sliced(node)
        case ast.Attribute(value=value, attr=name) if name in _OTHER_NAMES:
            kind = "another dtype" if "loat" in name or "int" in name else "another operation"
            yield kind, f"{ast.unparse(value)}.{_OTHER_NAMES[name]}"
    is_function = isinstance(parent, ast.Call) and field == "func"
    if (text in _SIZES or text.startswith("dist.get_world_size(")) and not is_function:
        yield "world size as a number", str(RANKS)
    if isinstance(parent, ast.If | ast.While) and field == "test":
        yield "branch left out", "False"
        if isinstance(parent, ast.If):
            yield "branch left out", "True"
    if isinstance(parent, ast.Return) and not _is_text(node):
        yield "string for a number", f"str({text})"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _turned(node: ast.Compare) -> Iterator[tuple[str, str]]:
    sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
    signs = [
        ast.unparse(ast.Compare(ast.Name("a"), [op], [ast.Name("b")]))[2:-2] for op in node.ops
    ]
    for place, op in enumerate(node.ops):
        for other in _TURNED[type(op)]:
            chain = [*signs[:place], other, *signs[place + 1 :]]
            pairs = zip(chain, sides[1:], strict=True)
            yield (
                "comparison turned",
                f"({sides[0]})" + "".join(f" {sign} ({side})" for sign, side in pairs),
            )


def _computed(node: ast.BinOp) -> Iterator[tuple[str, str]]:
    left, right = ast.unparse(node.left), ast.unparse(node.right)
    if type(node.op) in _OTHERWISE:
        yield "another operator", f"({left}) {_OTHERWISE[type(node.op)]} ({right})"
    if isinstance(node.op, ast.Div | ast.FloorDiv):
        yield "sum for mean", left
    elif isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Mod):
        yield "term left out", left


def _called(node: ast.Call, text: str) -> Iterator[tuple[str, str]]:
    name = ast.unparse(node.func)
    given = [ast.unparse(one) for one in node.args]
    inside = text[len(name) :]
    if name in _OTHER_FUNCTIONS:
        yield "another function", f"{_OTHER_FUNCTIONS[name]}{inside}"
    if name in ("min", "max") and len(given) == 2 and not node.keywords:
        yield from (("case left out", one) for one in given)
    if name == "range":
        end = min(1, len(given) - 1)
        yield (
            "range by one",
            f"range({', '.join([*given[:end], f'({given[end]}) - 1', *given[end + 1 :]])})",
        )
    if name in _COPIES and len(given) == 1 and not isinstance(node.args[0], ast.Starred):
        yield "copy left out", given[0]
    if isinstance(node.func, ast.Attribute):
        owner, method = ast.unparse(node.func.value), node.func.attr
        if method in _COPIES_OF_ITSELF and not given:
            yield "copy left out", owner
        if method in _OTHER_METHODS:
            yield "sum for mean", f"({owner}).{_OTHER_METHODS[method]}{inside}"
        if method.endswith("_like") and owner in ("np", "torch") and len(given) == 1:
            yield "another dtype", f"{owner}.{method.removesuffix('_like')}({given[0]}.shape)"
        if method in ("get_world_size", "get_rank") and given:
            yield "group left out", f"{name}()"
        if method in _INTO_THE_FIRST.get(owner, ()) and given:
            copy = f"{given[0]}.clone()" if owner == "dist" else f"np.copy({given[0]})"
            yield "copy put in", f"{name}({', '.join([copy, *_rest(node)])})"
    for number, keyword in enumerate(node.keywords):
        if keyword.arg and keyword.arg not in _NOT_LEFT_OUT:
            rest = [one for place, one in enumerate(node.keywords) if place != number]
            yield f"{keyword.arg} left out", ast.unparse(ast.Call(node.func, node.args, rest))


def _rest(node: ast.Call) -> list[str]:
    return [ast.unparse(one) for one in (*node.args[1:], *node.keywords)]


def _sliced(node: ast.Slice) -> Iterator[tuple[str, str]]:
    lower, upper, step = (ast.unparse(x) if x else "" for x in (node.lower, node.upper, node.step))
    step = f":{step}" if step else ""
    if lower:
        yield "slice from the start", f":{upper}{step}"
    if upper:
        yield "slice to the end", f"{lower}:{step}"
        yield "slice by one", f"{lower}:({upper}) - 1{step}"


# ---- statements -------------------------------------------------------------------------------


def in_place_of(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield what a learner might write in place of a statement."""
    match node:
        case ast.Expr():
            text = ast.unparse(node)
            yield ("wait left out" if ".wait" in text.lower() else "line left out"), "pass"
        case ast.AugAssign(target=target, op=op, value=value):
            yield "line left out", "pass"
            if type(op) in _OTHERWISE:
                sign = _OTHERWISE[type(op)]
                yield "another operator", f"{ast.unparse(target)} {sign}= {ast.unparse(value)}"
        case ast.Assign(targets=[target], value=value):
            name = ast.unparse(target)
            read = {one.id for one in ast.walk(value) if isinstance(one, ast.Name)}
            if not isinstance(target, ast.Name | ast.Tuple) or name in read:
                yield "line left out", "pass"
        case ast.Assert() | ast.Break() | ast.Continue() | ast.Delete():
            yield "line left out", "pass"
        case ast.Return(value=None) | ast.Return(value=ast.Constant(value=None)):
            yield "return left out", "pass"
        case ast.With(body=body):
            yield "context left out", ast.unparse(ast.If(ast.Constant(True), body, []))


def _swapped(tree: ast.Module, function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Swap neighbouring statements that have effects on the same names."""
    for owner in ast.walk(function):
        body = getattr(owner, "body", None)
        if not isinstance(body, list):
            continue
        for place in range(len(body) - 1):
            first, second = body[place : place + 2]
            both = (ast.Expr, ast.AugAssign)
            if isinstance(first, both) and isinstance(second, both) and not _left_alone(first):
                swapped = [*body[:place], second, first, *body[place + 2 :]]
                if _changes(first) & _names(second) or _changes(second) & _names(first):
                    yield "lines swapped", _body(tree, owner, swapped)


def _changes(statement: ast.stmt) -> set[str]:
    """Return the names of the values that a statement may change."""
    return _names(statement.target if isinstance(statement, ast.AugAssign) else statement)


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} - {"dist", "torch"}


def _body(tree: ast.Module, owner: Any, body: list[ast.stmt]) -> str:
    kept, owner.body = owner.body, body
    try:
        return ast.unparse(tree)
    finally:
        owner.body = kept


# ---- the function as a whole ------------------------------------------------------------------


def of_the_function(tree: ast.Module, function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Change a whole function: its group, an early end, its arguments, the values it keeps."""
    arguments = {one.arg for one in function.args.args}
    body = function.body

    def with_line(place: int, line: str) -> str:
        return _body(tree, function, [*body[:place], *ast.parse(line).body, *body[place:]])

    if "world_size" in arguments:
        yield "world size as a number", with_line(0, f"world_size = {RANKS}")
    if "comm" in arguments:
        yield "communicator of all ranks", with_line(0, 'comm = globals()["comm"]')
    if "group" in arguments:
        yield "group of all ranks", with_line(0, "group = dist.group.WORLD")
    rank = next((text for name, text in _RANKS.items() if name in arguments), "")
    if rank:
        yield "early return on one rank", with_line(0, f"if {rank} == 0:\n    return")
        if len(body) > 1:
            end = len(body) - 1
            yield "early return on one rank", with_line(end, f"if {rank} == 1:\n    return")
    for number, decorator in enumerate(function.decorator_list):
        kept = function.decorator_list
        function.decorator_list = [one for place, one in enumerate(kept) if place != number]
        yield f"{ast.unparse(decorator)} left out", ast.unparse(tree)
        function.decorator_list = kept
    function.decorator_list.insert(0, ast.Name(_SPOIL))
    yield "arguments changed in place", ast.unparse(tree)
    del function.decorator_list[0]
    if arguments:  # without any, it has the same answer each time
        yield from _kept_in_a_global(tree, function, arguments)


_RANKS = {"comm": "comm.rank", "group": "dist.get_rank(group)", "ddp": "dist.get_rank()"}


def _kept_in_a_global(
    tree: ast.Module, function: ast.FunctionDef, arguments: set[str]
) -> Iterator[tuple[str, str]]:
    """Let a value live on from call to call."""
    local = arguments | {
        one.id
        for one in ast.walk(function)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
    for place, statement in enumerate(function.body):
        if not isinstance(statement, ast.Assign) or _names(statement.value) & local:
            continue
        names = sorted(
            one.id
            for target in statement.targets
            for one in ast.walk(target)
            if isinstance(one, ast.Name)
        )
        if not set(names) & _changed_later(function.body[place + 1 :]):
            continue
        kept = [*function.body[:place], ast.Global(names), *function.body[place + 1 :]]
        at = tree.body.index(function)
        tree.body.insert(at, statement)
        try:
            yield "state kept in a global", _body(tree, function, kept)
        finally:
            del tree.body[at]


def _changed_later(body: list[ast.stmt]) -> set[str]:
    """Return the names whose values these statements change or replace."""
    found = set()
    for node in (one for statement in body for one in ast.walk(statement)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
                found.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
                found.add(name)
    return found
