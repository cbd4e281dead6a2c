"""Progress of training: one live row per run on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from .._require import counted
from ..training.history import Epoch
from ..training.run_folder import is_finished
from .console import say
from .table import clock, short_names

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from ..training.run import Job

REFRESHES = 4  # per second
WIDEST, LONGEST_BAR, SHORTEST_BAR = 120, 24, 4  # columns
LINES = 15  # per run without a terminal, and one after the first epoch


@dataclass
class Row:
    """The latest reported state of a run."""

    title: str
    epochs: int
    epoch: int = 0  # epochs done
    step: int = 0
    steps: int | None = None  # per epoch; None before the run starts
    speed: float | None = None  # samples per second
    last: Epoch | None = None
    first_report: tuple[float, float] | None = None  # time and epochs done

    @property
    def done(self) -> float:
        return self.epoch + self.step / (self.steps or 1)

    def reach(self, epoch: int, step: int) -> None:
        """Move forward, never back: the end of an epoch may be reported after the next one has begun."""
        self.epoch, self.step = max((self.epoch, self.step), (epoch, step))

    def seconds_left(self) -> float | None:
        """Estimate from the time since the first reported step, which excludes loading and compiling."""
        began, before = self.first_report or (0.0, self.done)
        if self.done <= before:
            return None
        return (time.monotonic() - began) / (self.done - before) * (self.epochs - self.done)

    def facts(self) -> dict[str, str]:
        """Return the known numbers by name, formatted."""
        shown = {"epoch": f"{self.epoch:>{len(str(self.epochs))}}/{self.epochs}"}
        if (epoch := self.last) is not None:
            shown["loss"] = f"{epoch.loss:.3f}"
            for name, share in list(epoch.accuracy.items())[:1]:
                shown[name] = f"{100 * share:.1f}%"
                if name in epoch.averaged:
                    shown["averaged"] = f"{100 * epoch.averaged[name]:.1f}%"
            if epoch.tau is not None or epoch.mixture is not None:
                shown["tau"] = "-" if epoch.tau is None else f"{epoch.tau:.3g}"
            if epoch.mixture is not None:  # not the noise rate, which comes from the surveys at the end
                shown["noisy"] = f"{100 * epoch.mixture['noisy_weight']:.0f}%"
        if self.speed is not None:
            shown["samples/s"] = f"{self.speed:,.0f}"
        left = self.seconds_left()
        if self.epoch >= self.epochs:
            shown["left"] = "done"
        elif left is not None:
            shown["left"] = clock(left)
        return shown

    def line(self) -> str:
        units = {"noisy": "noisy normal {}", "samples/s": "{} samples/s", "left": "{} left"}
        facts = (units.get(name, f"{name} {{}}").format(value) for name, value in self.facts().items())
        return "  ".join([self.title, *facts]).replace("done left", "done")


class Progress:
    """Show the progress of ``train``: ``with Progress(console, jobs) as watch: train(jobs, watch=watch)``.

    A thread draws the rows a few times per second. A report costs a training step only a few assignments.
    """

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self.console = console
        titles = short_names([job.recipe.model_dump(mode="json") for job in jobs])
        self.rows: list[Row] = []
        for title, job in zip(titles, jobs, strict=True):
            finished = job.out is not None and is_finished(job.out)  # resumed, but already finished
            self.rows.append(Row(title, job.recipe.epochs, job.recipe.epochs if finished else 0))
        self.line_epochs: list[set[int]] = [set() for _ in jobs]  # epochs to print a line after
        self.live: Live | None = None

    def __enter__(self) -> Self:
        from rich.live import Live

        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self.live = Live(get_renderable=self.table, console=self.console, refresh_per_second=REFRESHES)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def began(self, run: int, *, epoch: int, epochs: int, steps: int) -> None:
        row = self.rows[run]
        row.epoch, row.epochs, row.steps, row.step = epoch, epochs, steps, 0
        left = epochs - epoch
        self.line_epochs[run] = {epoch + max(1, round(left * i / LINES)) for i in range(LINES + 1)}
        if self.live is None:
            after = f", {epoch} of them done" if epoch else ""
            self.said(f"{row.title}  {counted(epochs, 'epoch')} of {counted(steps, 'step')}{after}")

    def moved(self, run: int, *, epoch: int, step: int, images_per_second: float | None) -> None:
        row = self.rows[run]
        row.reach(epoch, step)
        row.speed = row.speed if images_per_second is None else images_per_second
        if row.first_report is None:
            row.first_report = (time.monotonic(), row.done)

    def ended_epoch(self, run: int, epoch: Epoch) -> None:
        row = self.rows[run]
        row.reach(epoch.epoch, 0)
        row.last, row.speed = epoch, epoch.images_per_second
        if self.live is None and epoch.epoch in self.line_epochs[run]:
            self.said(row.line())

    def said(self, sentence: str) -> None:
        say(self.console, sentence)

    def table(self) -> Text:
        """Format one line per run, with a bar in the remaining width. This is ten times as fast as rich's table."""
        from rich.text import Text

        facts = [row.facts() for row in self.rows]
        names = [
            "epoch",
            *dict.fromkeys(name for each in facts for name in each if name not in ("epoch", "left")),
            "left",
        ]
        cells = [names, *([each.get(name, "-") for name in names] for each in facts)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        numbers = [" ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        room = min(self.console.width, WIDEST) - len(numbers[0]) - 2
        title = max(min(max(len(row.title) for row in self.rows), room - SHORTEST_BAR), 1)
        bar = max(min(room - title, LONGEST_BAR), SHORTEST_BAR)
        full, empty = ("\u2501", "\u2500") if self.console.encoding.startswith("utf") else ("=", "-")
        shown = Text(no_wrap=True, overflow="crop").append(" " * (title + bar + 2) + numbers[0], "dim")
        for row, line in zip(self.rows, numbers[1:], strict=True):
            done = int(bar * row.done / row.epochs)
            name = row.title if len(row.title) <= title else row.title[: title - 1] + "~"
            shown.append(f"\n{name:{title}} ").append(full * done, "green").append(empty * (bar - done), "dim")
            shown.append(f" {line}" if row.steps or row.epoch else " waiting")
        return shown
