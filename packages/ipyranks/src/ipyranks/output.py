"""Shows the ranks' output and results of a cell in rank order, each line with its rank.

A line printed by rank 2 reads ``rank 2 | hello``; the value of a last expression reads
``rank 2 = 42``. The order never depends on timing, so an executed notebook is always the same.
While a person waits, the same text is updated in place as it grows.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from IPython import get_ipython
from IPython.display import display, publish_display_data

_LIVE_LINES = 50  # of each rank while the cell runs; all of them at the end
_BAR_WIDTH = 20
_CLEAR_WITH_THE_NEXT: dict[str, Any] = {"data": {}}  # among a rank's displays
_NEW_OUTPUT = ("stream", "display_data", "execute_result")
# Open MPI prints this when a non-blocking collective is freed, which the report says better.
_NOISE = re.compile(r"^NBC_Progress: an error .* - aborting the schedule\n\n?", re.MULTILINE)


class CellOutput:
    """The output of one cell on several ranks.

    Args:
        result: the ``AsyncResult`` of the cell.
        ranks: where it runs, in ascending order, as the children of ``result``.
        world_size: ranks in the cluster, which sets the width of the labels.
    """

    def __init__(self, result: Any, ranks: Sequence[int], world_size: int) -> None:
        self._children = dict(zip(ranks, result._children, strict=True))
        self._records = [(r, child.output.metadata) for r, child in self._children.items()]
        self._width = len(str(world_size - 1))
        self._began = time.monotonic()
        self._handle = None
        self._shown = ""

    # ---- text --------------------------------------------------------------------------

    def label(self, rank: int) -> str:
        """``rank 2``, as wide as that of the highest rank."""
        return f"rank {rank:>{self._width}}"

    def text(self, stream: str, last: int | None = None) -> str:
        """All lines on ``stream`` ("stdout" or "stderr"), in rank order.

        Args:
            last: if given, only this many lines of each rank, and how many were left out.
        """
        return "".join(self._text_of(rank, record[stream], last) for rank, record in self._records)

    def printed(self) -> int:
        """How many characters have been printed so far."""
        return sum(len(r["stdout"]) + len(r["stderr"]) for _, r in self._records)

    def _text_of(self, rank: int, text: str, last: int | None = None) -> str:
        lines = _NOISE.sub("", text).splitlines()
        if last is not None and len(lines) > last:
            lines = [f"... {len(lines) - last} earlier lines", *lines[-last:]]
        return "".join(f"{self.label(rank)} | {line}".rstrip() + "\n" for line in lines)

    def _result_text(self, rank: int, text: str) -> str:
        label = f"{self.label(rank)} = "
        return label + text.replace("\n", "\n" + " " * len(label)) + "\n"

    # ---- at the end --------------------------------------------------------------------

    def show(self, groupby: str = "type") -> None:
        """Show everything the ranks have produced.

        Args:
            groupby: "type" (all prints, then all figures, then all results), "engine" (rank by
                rank), or "order" (like type, but the first figure of every rank comes first).
        """
        if groupby == "engine":
            for rank, record in self._records:
                _write(self._text_of(rank, record["stdout"]), sys.stdout)
                _write(self._text_of(rank, record["stderr"]), sys.stderr)
                self._show_figures([(rank, content) for content in record["outputs"]])
                self._show_results([(rank, record)])
            return
        if self._handle is None:
            _write(self.text("stdout"), sys.stdout)
            _write(self.text("stderr"), sys.stderr)
        else:
            self._update(self.text("stdout") + self.text("stderr"))
        figures = [
            (position, rank, content)
            for rank, record in self._records
            for position, content in enumerate(record["outputs"])
        ]
        if groupby == "order":
            figures.sort(key=lambda figure: figure[:2])
        self._show_figures([(rank, content) for _, rank, content in figures])
        self._show_results(self._records)

    def _show_figures(self, figures: Iterable[tuple[int, dict]]) -> None:
        for rank, content in figures:
            if content is _CLEAR_WITH_THE_NEXT:
                continue
            is_update = content.get("update", False)
            if not is_update:
                print(f"{self.label(rank)} |")
            name = _id(content) and f"{_id(content)}, rank {rank}"
            publish_display_data(
                content["data"],
                content.get("metadata") or {},
                transient={"display_id": name} if name else {},
                update=is_update,
            )

    def _show_results(self, records: Iterable[tuple[int, Any]]) -> None:
        text, figures = "", []
        for rank, record in records:
            content = record["execute_result"]
            if not content:
                continue
            if set(content["data"]) == {"text/plain"} or get_ipython() is None:
                text += self._result_text(rank, content["data"]["text/plain"])
            else:
                figures.append((rank, content))
        _write(text, sys.stdout)
        self._show_figures(figures)

    # ---- while a person waits ----------------------------------------------------------

    def show_live(self, progress: bool) -> None:
        """Show what there is so far, in place; ``progress`` adds a bar of finished ranks.

        Only a notebook can show it in place; elsewhere all of it comes at the end.
        """
        if getattr(get_ipython(), "kernel", None) is None:
            return
        text = self.text("stdout", _LIVE_LINES) + self.text("stderr", _LIVE_LINES)
        if progress:
            text += self._progress()
        if text:
            self._update(text)

    def _progress(self) -> str:
        running = [rank for rank, child in self._children.items() if not child.done()]
        total = len(self._children)
        filled = _BAR_WIDTH * (total - len(running)) // total
        bar = "\u2588" * filled + "\u2591" * (_BAR_WIDTH - filled)
        seconds = int(time.monotonic() - self._began)
        waiting = ", ".join(map(str, running[:8])) + (", ..." if len(running) > 8 else "")
        finished = f"{total - len(running)} of {total} ranks finished"
        return f"{bar} {finished}, {seconds} s" + (f", waiting for {waiting}" if running else "")

    def _update(self, text: str) -> None:
        if text == self._shown:
            return
        self._shown = text
        data = {"text/plain": text.rstrip("\n")}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def change_output(record: Any, kind: str, content: dict[str, Any]) -> None:
    """Change what a rank has shown in a cell, as a notebook does with its own output.

    Args:
        record: ipyparallel's, of the cell on this rank.
        kind: the type of a message from it.
        content: that of the message.
    """
    outputs = record["outputs"]
    if kind == "clear_output" and content["wait"]:
        outputs.append(_CLEAR_WITH_THE_NEXT)
    elif kind == "clear_output" or (kind in _NEW_OUTPUT and _CLEAR_WITH_THE_NEXT in outputs):
        record.update(stdout="", stderr="", outputs=[])
    elif kind == "update_display_data":
        _update_display(outputs, content)


def _update_display(outputs: list[dict], content: dict[str, Any]) -> None:
    same = [place for place, output in enumerate(outputs) if _id(output) == _id(content)]
    for place in same:
        outputs[place] = outputs[place] | {key: content[key] for key in ("data", "metadata")}
    if not same:  # of an earlier cell
        outputs.append(content | {"update": True})


def _id(output: dict[str, Any]) -> str | None:
    return (output.get("transient") or {}).get("display_id")


def _write(text: str, stream: TextIO) -> None:
    if text:
        stream.write(text)
        stream.flush()
