"""Runs a program on both backends and says in what they differ from the model and each other."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from . import model, printer
from .answers import pack, unpack
from .jobs import PROGRAM_SECONDS, HungError, Job, LostError
from .program import Program

BACKENDS = ("mpi4py", "gloo")
# What gloo's ranks say when a message does not come in time.
GLOO_TIMED_OUT = ("Application timeout caused", "Timed out waiting", "Operation timed out")


@dataclass(frozen=True)
class Finding:
    """What is wrong with a program on a backend.

    Attributes:
        signature: what findings of the same defect probably share.
        stalled: whether gloo ran out of time.
    """

    backend: str
    text: str
    signature: str
    stalled: bool = False


@dataclass
class Jobs:
    """The jobs of one run of the fuzzer.

    Attributes:
        seconds: how long a program may take.
        stalled_once: the number of programs in which gloo stalled, and not when run again.
    """

    arguments: tuple[str, ...] = ()
    seconds: float = PROGRAM_SECONDS
    stalled_once: int = 0
    jobs: dict[tuple[str, int], Job] = field(default_factory=dict)

    def of(self, backend: str, size: int) -> Job:
        if (backend, size) not in self.jobs:
            self.jobs[backend, size] = Job(backend, size, self.arguments)
        return self.jobs[backend, size]

    def stop(self) -> None:
        for job in self.jobs.values():
            job.stop()

    def check(self, program: Program, backends: tuple[str, ...] = BACKENDS) -> Finding | None:
        """Run a program on the backends, at the same time; return what is wrong first.

        Gloo itself stalls in one of some 1,500 programs. Where it alone did, it runs once more.
        """
        finding = self._first_finding(program, backends)
        if finding is None or not finding.stalled:
            return finding
        again = self._first_finding(program, ("gloo",))
        if again is None or not again.stalled:
            self.stalled_once += 1
        return again

    def _first_finding(self, program: Program, backends: tuple[str, ...]) -> Finding | None:
        expected = model.expected(program)
        wanted = [{key: list(map(pack, things)) for key, things in seen.items()}
                  for seen in expected.seen]  # fmt: skip
        for backend in backends:
            after: list[dict[tuple[int, int], Any]] = [{} for _ in range(program.size)]
            if backend == "gloo":
                after = [{k: pack(v) for k, v in mine.items()} for mine in expected.after]
            self.of(backend, program.size).send(printer.body(program, backend), after)
        findings = [self._finding(backend, program, wanted) for backend in backends]
        return next((finding for finding in findings if finding is not None), None)

    def _finding(self, backend: str, program: Program, wanted: list[dict]) -> Finding | None:
        job = self.of(backend, program.size)
        try:
            answers = job.answers(self.seconds)
        except LostError as error:
            stalled = backend == "gloo" and isinstance(error, HungError)
            return Finding(backend, str(error), f"{backend}: hung", stalled)
        found = differences(backend, program, answers, wanted)
        if found is None or not any(answer["error"] for answer in answers):
            return found
        if job.suspect not in ("", found.signature):
            # It may be an earlier program's doing: ask ranks that nothing has happened to.
            job.stop()
            return self.check(program, (backend,))
        job.suspect = found.signature
        if backend == "gloo":
            job.stop()
        return found


def differences(
    backend: str, program: Program, answers: list[dict], wanted: list[dict]
) -> Finding | None:
    """Return in what the ranks' answers are not those wanted; errors first."""
    errors = [
        f"{backend}, rank {rank}: error {answer['error']}"
        for rank, answer in enumerate(answers)
        if answer["error"]
    ]
    if errors:  # the cause before what it did to the others
        errors.sort(key=lambda text: "RevokedError" in text or "Connection closed" in text)
        frames = re.findall(r"^  (\S+?):\d+ in (\S+)$", errors[0], re.MULTILINE)
        last = errors[0].strip().splitlines()[1 + len(frames) :][:1]
        where = " ".join(frames[-1]) if frames else ""
        kind = re.sub(r"\d+", "N", "".join(last))[:100]
        stalled = backend == "gloo" and has_stalled(errors)
        return Finding(backend, "\n".join(errors), f"{backend}: {where}: {kind}", stalled)
    steps = dict(printer.numbered(program))
    for rank, (answer, wish) in enumerate(zip(answers, wanted, strict=True)):
        seen = answer["seen"]
        for key in wish:
            what = _kind_of(steps, key)
            if key not in seen:
                if backend == "gloo":
                    continue
                text = f"{backend}, rank {rank}: step {key} was not reached"
                return Finding(backend, text, f"{backend}: not reached {what}")
            if seen[key] != wish[key]:
                got, want = list(map(unpack, seen[key])), list(map(unpack, wish[key]))
                text = f"{backend}, rank {rank}, step {key}: saw {got}\nnot {want}"
                return Finding(backend, text, f"{backend}: values of {what}")
        extra = set(seen) - set(wish)
        if extra:
            text = f"{backend}, rank {rank}: the model does not know {sorted(extra)}"
            return Finding(backend, text, "the model")
    return None


def has_stalled(errors: list[str]) -> bool:
    """Return whether gloo's ranks only ran out of time, or lost those that had."""
    timed_out = [any(sign in error for sign in GLOO_TIMED_OUT) for error in errors]
    return any(timed_out) and all(
        late or "Connection closed" in error for late, error in zip(timed_out, errors, strict=True)
    )


def _kind_of(steps: dict[int, Any], key: str) -> str:
    """Say what kind of step a key belongs to."""
    number = re.search(r"^(?:gradient )?(\d+)", key)
    if number is None:
        return re.sub(r"\d+", "N", key)
    step = steps[int(number[1])]
    begun = steps[step.step] if hasattr(step, "step") and hasattr(step, "how") else step
    return f"{type(begun).__name__} {getattr(begun, 'kind', '')}".strip()
