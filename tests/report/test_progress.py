import io
import itertools
import re
import time

import pytest
from rich.console import Console

from ogc.data import load_digits
from ogc.noise import LabelInfo
from ogc.report.progress import Progress
from ogc.training import RECIPES, Epoch, Job, override, train

MIXTURE = {"clean_mean": 0.4, "clean_var": 0.2, "noisy_mean": 4.0, "noisy_var": 2.0, "noisy_weight": 0.462}
INFO = LabelInfo("symmetric", 0.5, 0.4498, 0, 10, None, "")


def jobs(*changes, info=INFO):
    return [Job(override(RECIPES["digits"], change), None, None, info) for change in changes or ({},)]


def epoch(number, *, fitted=True, sets=("test",), average=True):
    return Epoch(
        epoch=number,
        lr=0.1,
        loss=1.2345,
        accuracy=dict.fromkeys(sets, 0.894),
        averaged=dict.fromkeys(sets, 0.912) if average else {},
        agreement=0.5,
        clean=None,
        memorised=None,
        recovered=None,
        tau=3.456 if fitted else None,
        p0=0.3,
        mixture=MIXTURE if fitted else None,
        ratio=None,
        true_ratio=None,
        seconds=1.0,
        images_per_second=51_234.5,
    )


def output_of(todo, report, *, terminal=False, width=80, encoding="utf-8"):
    """Return the output of a ``Progress`` that is passed to ``report``."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    with Progress(Console(file=file, width=width, force_terminal=terminal, color_system=None), todo) as watch:
        report(watch)
    return raw.getvalue().decode(encoding)


def simulate_run(watch, run=0, epochs=150, done=0, **options):
    watch.began(run, epoch=done, epochs=epochs, steps=10)
    for number in range(done + 1, epochs + 1):
        watch.moved(run, epoch=number - 1, step=10, images_per_second=1000.0)
        watch.ended_epoch(run, epoch(number, **options))


def logged_epochs(text):
    return [int(number) for number in re.findall(r"epoch +(\d+)/", text)]


@pytest.mark.parametrize("epochs", [1, 2, 19, 20, 150, 1000])
def test_pipe_gets_at_most_twenty_lines_per_run(epochs):
    todo = jobs({"epochs": epochs})
    text = output_of(todo, lambda watch: simulate_run(watch, epochs=epochs))
    numbers = logged_epochs(text)
    assert numbers == sorted(set(numbers))
    assert {1, epochs} <= set(numbers)
    assert min(epochs, 14) <= len(numbers) <= 19
    assert len(text.splitlines()) == len(numbers) + 1
    if epochs > 100:
        gaps = [b - a for a, b in itertools.pairwise(numbers)]
        assert max(gaps) <= epochs / 14 + 1
    assert "\x1b" not in text
    assert "\r" not in text


def test_line_format():
    text = output_of(jobs({"epochs": 2}), lambda watch: simulate_run(watch, epochs=2))
    first, _, last = text.splitlines()
    assert first == "ce+ogc  2 epochs of 10 steps"
    assert last == (
        "ce+ogc  epoch 2/2  loss 1.234  test 89.4%  averaged 91.2%  tau 3.46  noisy normal 46%  51,234 samples/s  done"
    )


def test_line_omits_missing_values():
    def report(watch):
        simulate_run(watch, epochs=2, fitted=False, sets=(), average=False)

    last = output_of(jobs({"epochs": 2, "method": "ce"}), report).splitlines()[-1]
    assert last == "ce  epoch 2/2  loss 1.234  51,234 samples/s  done"
    unknown = output_of(jobs({"epochs": 2}, info=None), lambda watch: simulate_run(watch, epochs=2)).splitlines()[-1]
    assert "noisy normal 46%" in unknown


def test_lines_are_flushed_immediately():
    class File(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed = len(self.getvalue())

    file = File()
    with Progress(Console(file=file), jobs({"epochs": 3})) as watch:
        watch.began(0, epoch=0, epochs=3, steps=10)
        assert "epochs of" in file.getvalue()[: file.flushed]
        watch.ended_epoch(0, epoch(1))
        assert "epoch 1/3" in file.getvalue()[: file.flushed]


def test_resumed_run_continues_its_epoch_count():
    text = output_of(jobs({"epochs": 150}), lambda watch: simulate_run(watch, epochs=150, done=140))
    assert "150 epochs of 10 steps, 140 of them done" in text
    assert logged_epochs(text) == list(range(141, 151))


def test_time_left_is_estimated_from_the_first_step(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = Progress(Console(file=io.StringIO()), jobs({"epochs": 10}))
    watch.began(0, epoch=2, epochs=10, steps=10)
    assert watch.rows[0].seconds_left() is None
    now[0] += 500  # compiling
    watch.moved(0, epoch=2, step=1, images_per_second=None)
    assert watch.rows[0].seconds_left() is None
    now[0] += 2
    watch.moved(0, epoch=2, step=3, images_per_second=None)
    assert watch.rows[0].seconds_left() == pytest.approx(77)  # 77 steps at one second per step
    now[0] += 7
    watch.ended_epoch(0, epoch(3))
    assert watch.rows[0].seconds_left() == pytest.approx(70)
    assert watch.rows[0].facts()["left"] == "1:10"


def test_late_end_of_epoch_does_not_move_progress_back():
    """The engine reports the end of an epoch after the next one has begun."""
    watch = Progress(Console(file=io.StringIO()), jobs({"epochs": 3}))
    watch.began(0, epoch=0, epochs=3, steps=10)
    watch.moved(0, epoch=0, step=9, images_per_second=1000.0)
    watch.moved(0, epoch=1, step=4, images_per_second=None)
    assert watch.rows[0].facts()["samples/s"] == "1,000"
    watch.ended_epoch(0, epoch(1))
    assert watch.rows[0].done == pytest.approx(1.4)
    watch.moved(0, epoch=1, step=10, images_per_second=None)
    watch.ended_epoch(0, epoch(2))
    assert watch.rows[0].facts()["epoch"] == "2/3"
    assert watch.rows[0].done == 2


def frame(watch):
    return watch.table().plain.splitlines()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_terminal_shows_one_row_per_run_within_its_width(width):
    todo = jobs(*({"method": method, "seed": seed} for method in ("ce+ogc", "taylor_ce+ogc") for seed in range(4)))
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    watch = Progress(console, todo)
    for run in range(7):
        simulate_run(watch, run, epochs=120)
        watch.rows[run].epoch = 60
    head, *rows = frame(watch)
    if width >= 80:
        assert max(map(len, (head, *rows))) <= width
        assert head.split() == ["epoch", "loss", "test", "averaged", "tau", "noisy", "samples/s", "left"]
        assert re.match(r"taylor_ce\+ogc seed 2 +[━─]+ +60/120 1.234 89.4% +91.2% 3.46 +46% +51,234 \d:\d\d$", rows[6])
        assert 0 <= rows[6].count("─") - rows[6].count("━") <= 1 < rows[6].count("━"), "the bar is half full"
    assert len(rows) == 8
    assert rows[7].endswith("waiting")


def test_finished_run_is_not_shown_as_waiting(tmp_path):
    (tmp_path / "result.json").touch()
    first, second = jobs({"epochs": 3}, {"epochs": 3, "seed": 1})
    watch = Progress(Console(file=io.StringIO(), width=80), [first, second._replace(out=tmp_path)])
    _, one, other = frame(watch)
    assert one.endswith("waiting")
    assert other.endswith("3/3 done")
    watch.began(1, epoch=0, epochs=3, steps=10)  # trained after all
    assert "0/3" in frame(watch)[2]


def test_screen_refresh_rate_is_limited():
    seconds, began = 1.0, time.monotonic()

    def report(watch):
        watch.began(0, epoch=0, epochs=2, steps=10**9)
        for step in range(10**9):
            watch.moved(0, epoch=0, step=step, images_per_second=1.0)
            if time.monotonic() - began > seconds:
                return

    text = output_of(jobs(), report, terminal=True)
    assert 2 <= text.count("samples/s") <= 10 * (time.monotonic() - began)


def test_screen_keeps_last_state_and_restores_cursor_on_error():
    raw = io.StringIO()

    def train_and_fail():
        with Progress(Console(file=raw, width=80, force_terminal=True), jobs({"epochs": 3})) as watch:
            simulate_run(watch, epochs=2)
            watch.said("The loop trains [not the engine].")
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        train_and_fail()
    text = raw.getvalue()
    assert "The loop trains [not the engine]." in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "2/2" in text[text.rindex("averaged") :]


def test_ascii_terminal_gets_ascii_bars():
    text = output_of(jobs({"epochs": 3}), lambda watch: simulate_run(watch, epochs=2), terminal=True, encoding="ascii")
    assert "====" in text


def test_titles_distinguish_runs():
    def titles(*changes):
        return [row.title for row in Progress(Console(), jobs(*changes)).rows]

    assert titles({}) == ["ce+ogc"]
    assert titles({"seed": 0}, {"seed": 1}) == ["seed 0", "seed 1"]
    assert titles({"method": "ce"}, {}) == ["ce", "ce+ogc"]
    assert titles({"noise": "symmetric:0.2", "seed": 1}, {"seed": 2}) == ["symmetric:0.2", "no noise added"]
    assert titles({"epsilon": 1}, {"epsilon": 2.0})[0].startswith("epsilon 1 ")


def test_progress_of_real_training(tmp_path):
    recipe = override(RECIPES["digits"], {"epochs": 2, "hidden": "8"})
    todo = [Job(recipe, None, load_digits(), None, tmp_path)]
    text = output_of(todo, lambda watch: train(todo, device="cpu", watch=watch))
    lines = text.splitlines()
    assert lines[0] == "ce+ogc  2 epochs of 11 steps"
    assert re.fullmatch(
        r"ce\+ogc  epoch 1/2  loss \d\.\d{3}  test \d+\.\d%  averaged .* samples/s  \d:\d\d left", lines[1]
    )
    assert lines[2].endswith("done")
