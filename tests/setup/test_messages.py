"""The list of messages (tools/messages.py), from which they are proofread."""

from __future__ import annotations

import pytest

from tools.messages import files, messages


def found(source: str) -> list[tuple[int, str, str]]:
    return [(one.line, one.use, one.text) for one in messages("file.py", source)]


@pytest.mark.parametrize(
    ("line", "use", "text"),
    [
        ('raise ValueError("bad")', "raise ValueError", "bad"),
        (
            'raise errors.StartError(f"rank {r} of " f"{n}") from e',
            "raise errors.StartError",
            "rank {…} of {…}",
        ),
        ('warnings.warn("too late", stacklevel=2)', "warn", "too late"),
        ('print(f"{n} ranks", file=out)', "print", "{…} ranks"),
        ('sys.stderr.write("no cluster")', "print", "no cluster"),
        ('note = "All ranks are free"', "text", "All ranks are free"),
        ('note = "the ranks " + names + " are free"', "text", "the ranks {…} are free"),
    ],
)
def test_message_is_listed_with_its_use(line: str, use: str, text: str) -> None:
    assert found(line) == [(1, use, text)]


def test_messages_are_sorted_by_line() -> None:
    source = "def f():\n    raise ValueError('last')\n\nraise f('first: ' + 'b')\nprint('then c')\n"
    assert [line for line, _, _ in found(source)] == [2, 4, 5]


def test_text_inside_a_field_is_listed_separately() -> None:
    source = """raise ValueError(f"no {', or a list of them' if many else 'tensor'}")"""
    assert found(source) == [
        (1, "raise ValueError", "no {…}"),
        (1, "text", ", or a list of them"),
    ]


@pytest.mark.parametrize(
    "source",
    [
        '"""What a module is for."""',
        'def f():\n    """Return what it is for."""',
        'name = "all_to_all"',
        'words = "two words"',
        "style = '<td class=\"number\">{} {}</td>'",
        'option = "--no-browser --port 8899 --quiet"',
        'raise WrongAnswer("drops-the-rest: by one")',
    ],
)
def test_other_strings_are_omitted(source: str) -> None:
    assert found(source) == []


def test_every_package_has_messages() -> None:
    listed = {path.parts[-2] for path in files() if messages("file.py", path.read_text())}
    assert {"group", "comm", "board", "ipyranks", "parallel", "teaching", "doctor"} <= listed
