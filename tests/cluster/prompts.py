"""Types at the prompts of a kernel, as a person does in a front end."""

from __future__ import annotations

from .conftest import ANSI, Kernel, Output

ASKS_WITHIN_S = 60


def await_prompt(kernel: Kernel) -> str:
    request = kernel.client.get_stdin_msg(timeout=ASKS_WITHIN_S)
    assert request["msg_type"] == "input_request"
    return request["content"]["prompt"]


def typing(kernel: Kernel, code: str, *lines: str) -> Output:
    """Run a cell that asks for these lines, and no more; each is ``"rank 2> p x"``."""
    running = kernel.begin(code)
    for line in lines:
        answer(kernel, line)
    return kernel.finish(running)


def answer(kernel: Kernel, line: str) -> None:
    """Type one line, behind the prompt that is expected."""
    prompt, _, typed = line.partition("> ")
    assert await_prompt(kernel) == f"{prompt}> "
    kernel.client.input(typed)


def plain(out: Output) -> str:
    assert out.error is None, out.traceback
    return ANSI.sub("", out.text())
