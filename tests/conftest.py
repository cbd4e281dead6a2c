"""Settings of the test suite: hypothesis profiles, the source tree for child processes, pictures, the browser."""

import gc
import io
import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from PIL import Image

from browser import find_browser
from children import Server, kill_all

pytest.register_assert_rewrite("asserts", "samples")

torch.set_num_threads(1)  # pytest-xdist's workers share the cores

SOURCE = str(Path(__file__).parent.parent / "src")
NO_BROWSER = "no browser found"

# `make test` draws the same examples everywhere. `make fuzz` loads the other profile, with a fresh seed per round.
common = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck), "print_blob": False}
settings.register_profile("ogc", derandomize=True, **common)
settings.register_profile("fuzz", derandomize=False, **common)
settings.load_profile("ogc")

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read when Ray is imported: use only the loopback interface
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if a shell starts pytest in the background

# Child processes import ogc from this source tree, even if another one is installed.
paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if SOURCE not in paths:
    os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, *filter(None, paths)])


def pytest_collection_modifyitems(items):
    """Run files with slow tests first, so that the workers of `make test` finish at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
    """Exclude imported modules, almost a million objects, from later garbage collections."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Print one line in capitals if tests were skipped because no browser was found."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NO_BROWSER in str(report.longrepr)]
    if skipped:
        line = f"{len(skipped)} PAGE TESTS WERE SKIPPED: NO BROWSER FOUND. TO RUN THEM: apt-get install chromium"
        terminalreporter.write_line(f"{line} (OR .venv/bin/playwright install chromium)", red=True, bold=True)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def forks():
    yield
    Server.end()


@pytest.fixture(autouse=True)
def kill_leftover_children():
    yield
    kill_all()


@pytest.fixture
def fresh_compiler():
    """Reset the compiler before and after the test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def draw_nothing(patch):
    """Make ``savefig`` write a fixed picture. Rendering takes 95 % of the time of a small training run."""
    png = io.BytesIO()
    Image.new("L", (1, 1)).save(png, "PNG", dpi=(100, 100))

    def savefig(figure, file, *, format=None, **options):
        svg = '<svg viewBox="0 0 1 1"></svg>'
        content = {"png": png.getvalue(), "svg": svg if isinstance(file, io.StringIO) else svg.encode()}
        file.write(content[format])

    patch.setattr("matplotlib.figure.Figure.savefig", savefig)


@pytest.fixture(autouse=True, scope="module")
def quick_pictures(request):
    """Draw nothing in modules not marked ``pictures``. The figures are still built."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.node.get_closest_marker("pictures"):
            draw_nothing(patch)
        yield


@pytest.fixture
def no_pictures(monkeypatch):
    """Draw nothing in one test of a module marked ``pictures``."""
    draw_nothing(monkeypatch)


@pytest.fixture(scope="module")  # session scope would leave playwright's event loop running in other modules
def chromium():
    """Launch the browser, or skip."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install 'torch-ogc[test]'")
    path = find_browser()
    if path is None:
        pytest.skip(f"{NO_BROWSER}: apt-get install chromium")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
