"""Runs a program on both backends and says in what they differ from the model and each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import model, printer
from .answers import pack, unpack
from .jobs import HungError, Job
from .program import Program


@dataclass
class Jobs:
    """The jobs of one run of the fuzzer."""

    with_gloo: bool = True
    arguments: tuple[str, ...] = ()
    jobs: dict[tuple[str, int], Job] = field(default_factory=dict)

    def of(self, backend: str, size: int) -> Job:
        if (backend, size) not in self.jobs:
            self.jobs[backend, size] = Job(backend, size, self.arguments)
        return self.jobs[backend, size]

    def stop(self) -> None:
        for job in self.jobs.values():
            job.stop()

    def check(self, program: Program) -> str:
        """Run a program; return what is wrong, empty if nothing is."""
        expected = model.expected(program)
        wanted = [{key: list(map(pack, things)) for key, things in seen.items()}
                  for seen in expected.seen]  # fmt: skip
        backends = ["mpi4py", "gloo"] if self.with_gloo else ["mpi4py"]
        for backend in backends:
            after: list[dict[tuple[int, int], Any]] = [{} for _ in range(program.size)]
            if backend == "gloo":
                after = [{k: pack(v) for k, v in mine.items()} for mine in expected.after]
            self.of(backend, program.size).send(printer.body(program, backend), after)
        problems = []
        for backend in backends:
            job = self.of(backend, program.size)
            try:
                answers = job.answers()
            except HungError as error:
                problems.append(str(error))
                continue
            found = differences(backend, answers, wanted)
            if found:
                problems.append(found)
                job.stop()  # the next program gets ranks that nothing has happened to
        return "\n".join(problems)


def differences(backend: str, answers: list[dict], wanted: list[dict]) -> str:
    """Return in what the ranks' answers are not those wanted; errors first."""
    errors = [
        f"{backend}, rank {rank}: error {answer['error']}"
        for rank, answer in enumerate(answers)
        if answer["error"]
    ]
    if errors:  # the cause before what it did to the others
        return "\n".join(sorted(errors, key=lambda text: "RevokedError" in text))
    for rank, (answer, wish) in enumerate(zip(answers, wanted, strict=True)):
        seen = answer["seen"]
        for key in wish:
            if key not in seen:
                if backend == "gloo":
                    continue
                return f"{backend}, rank {rank}: step {key} was not reached"
            if seen[key] != wish[key]:
                got, want = list(map(unpack, seen[key])), list(map(unpack, wish[key]))
                return f"{backend}, rank {rank}, step {key}: {got}\nnot {want}"
        extra = set(seen) - set(wish)
        if extra:
            return f"{backend}, rank {rank}: the model does not know {sorted(extra)}"
    return ""
