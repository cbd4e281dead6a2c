"""Figures of a criterion: files, plotted numbers and error messages."""

import json

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import ogc
from children import output_of
from ogc import OGC, plot
from ogc.clipping import EMA

pytestmark = pytest.mark.pictures

STARTS = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}


@pytest.fixture(scope="module")
def trained():
    """Train a linear network on three classes with 40 % of labels replaced. Return the criterion and its recorder."""
    torch.manual_seed(0)
    network = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    criterion = OGC("ce", optimizer)
    recorder = plot.Recorder(criterion)
    rule = torch.randn(8, 3)
    for _ in range(6):
        for _ in range(16):
            inputs = torch.randn(64, 8)
            labels = (inputs @ rule).argmax(1)
            labels = torch.where(torch.rand(64) < 0.4, torch.randint(3, (64,)), labels)
            optimizer.zero_grad()
            criterion(network(inputs), labels).backward()
            optimizer.step()
        recorder.record()
    return criterion, recorder


def test_records_are_the_criterions_numbers(trained):
    criterion, recorder = trained
    last = recorder.records[-1]
    assert [record.steps for record in recorder.records] == [16, 32, 48, 64, 80, 96]
    assert (last.tau, last.p0) == (float(criterion.tau), float(criterion.p0))
    assert last.mixture == {name: float(value) for name, value in criterion.mixture._asdict().items()}
    assert last.noisy_weight == float(criterion.mixture.noisy_weight)
    assert last.clips
    assert len({record.tau for record in recorder.records}) > 1, "a record is a copy, not a view of the criterion"


def test_before_the_first_fit_a_record_has_no_mixture():
    record = plot.record_of(OGC("ce", follow_lr=False))
    assert (record.steps, record.mixture, record.noisy_weight) == (0, None, None)
    assert record.tau == pytest.approx(1e7)
    assert not record.clips


def test_a_recorder_resumes_from_its_state(trained):
    criterion, recorder = trained
    resumed = plot.Recorder(criterion)
    resumed.load_state_dict(json.loads(json.dumps(recorder.state_dict())))
    assert resumed.records == recorder.records
    resumed.record()
    assert resumed.records == [*recorder.records, recorder.records[-1]]


@pytest.mark.parametrize("kind", STARTS)
def test_figures_are_returned_and_written(kind, trained, tmp_path):
    criterion, recorder = trained
    for draw, of in ((plot.histogram, criterion), (plot.history, recorder)):
        path = tmp_path / f"{draw.__name__}.{kind}"
        figure = draw(of, path=str(path))
        assert isinstance(figure, Figure)
        assert path.read_bytes().startswith(STARTS[kind])
        assert path.stat().st_size > 5_000
    assert sorted(path.suffix[1:] for path in tmp_path.iterdir()) == [kind, kind], "no temporary files"


def test_a_notebook_shows_the_figure(trained):
    criterion, recorder = trained
    assert plot.histogram(criterion)._repr_png_().startswith(STARTS["png"])
    assert plot.history(recorder)._repr_png_().startswith(STARTS["png"])


def test_the_histogram_shows_the_queue_and_the_fit(trained):
    criterion, _ = trained
    figure = plot.histogram(criterion)
    [axes] = figure.axes
    counts = axes.patches[0].get_data().values
    assert sum(counts) == min(int(criterion.seen), criterion.queue_size)
    assert f"{100 * float(criterion.mixture.noisy_weight):.1f} % in the noisy normal" in figure.get_suptitle()
    assert "At step 96" in figure.get_suptitle()
    assert [line.get_label() for line in axes.lines] == ["normal fitted as clean", "normal fitted as noisy"]


def test_the_history_shows_the_records(trained):
    _, recorder = trained
    tau, normals, weight = plot.history(recorder).axes
    shown = [value for value in tau.lines[0].get_ydata() if value == value]
    assert shown == [record.tau for record in recorder.records if record.clips]
    assert [line.get_label() for line in normals.lines] == ["clean", "noisy"]
    for line, name in zip(normals.lines, ("clean_mean", "noisy_mean"), strict=True):
        assert [v for v in line.get_ydata() if v == v] == [r.mixture[name] for r in recorder.records if r.mixture]
    shares = [100 * record.noisy_weight for record in recorder.records if record.mixture]
    assert [value for value in weight.lines[0].get_ydata() if value == value] == shares


def test_history_with_ema_threshold_shows_only_tau():
    criterion = OGC("ce", threshold=EMA(0.9))
    recorder = plot.Recorder(criterion)
    for _ in range(3):
        criterion(torch.randn(4, 3, requires_grad=True), torch.zeros(4, dtype=torch.long))
        recorder.record()
    [axes] = plot.history(recorder).axes
    assert list(axes.lines[0].get_ydata()) == [record.tau for record in recorder.records]
    with pytest.raises(ValueError, match=r"EMA.* moves tau without a queue"):
        plot.histogram(criterion)


def test_one_record_without_a_fit_is_drawn():
    recorder = plot.Recorder(OGC("ce", follow_lr=False))
    recorder.record()
    assert plot.history(recorder).get_suptitle() == "No gradient is clipped at the end"


def test_compiled_criterion_is_unwrapped(trained):
    criterion, recorder = trained
    compiled = torch.compile(criterion, backend="eager")
    assert plot.record_of(plot.Recorder(compiled).criterion) == recorder.records[-1]
    assert isinstance(plot.histogram(compiled), Figure)


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (lambda: plot.histogram(OGC("ce", follow_lr=False)), ValueError, "it saw 0 samples in 0 .* after 256 samples"),
        (lambda: plot.histogram(OGC("ce", epsilon=2)), ValueError, "update after 4,096 samples"),
        (lambda: plot.histogram(nn.CrossEntropyLoss()), TypeError, "Found CrossEntropyLoss, which keeps neither"),
        (lambda: plot.Recorder(None), TypeError, "should be an ogc.OGC. Found NoneType"),
        (lambda: plot.history(plot.Recorder(OGC("ce"))), ValueError, r"call `recorder.record\(\)` after each epoch"),
        (lambda: plot.history(OGC("ce")), TypeError, r"Found OGC. Make one .*ogc.plot.Recorder\(criterion\)"),
    ],
)
def test_error_explains_why_nothing_can_be_drawn(draw, error, message):
    with pytest.raises(error, match=message):
        draw()


@pytest.mark.parametrize("name", ["picture", "picture.txt", "picture.jpeg2000"])
def test_a_path_without_a_known_format_is_refused(name, trained, tmp_path):
    with pytest.raises(ValueError, match=r"ends in \.png, \.svg or \.pdf\. Found `path = '.*picture"):
        plot.histogram(trained[0], path=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_failed_write_names_the_file(trained, tmp_path):
    with pytest.raises(OSError, match=r"No such file.*missing/history\.png"):
        plot.history(trained[1], path=tmp_path / "missing" / "history.png")


def test_without_matplotlib_recorder_works_and_error_names_extra(tmp_path):
    code = (
        "import sys\n"
        "loaded = [name for name in sys.modules if name.partition('.')[0] in ('matplotlib', 'ogc')]\n"
        "for name in loaded: del sys.modules[name]\n"  # so that ogc is imported without it
        "sys.modules['matplotlib'] = None\n"
        "import ogc\n"
        "recorder = ogc.plot.Recorder(ogc.OGC('ce', follow_lr=False)); recorder.record()\n"
        "try: ogc.plot.history(recorder)\n"
        "except ImportError as error: print(error)"
    )
    missing = 'ogc.plot needs matplotlib, which is missing: pip install "torch-ogc[plot]"'
    assert output_of(code, tmp_path).strip() == missing


def test_plot_is_public():
    assert ogc.plot is plot
    assert "plot" in dir(ogc)
