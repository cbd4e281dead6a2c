"""The guide from wrong labels to predictions: every command, and the review page in a real browser.

With ``JOURNEY=FOLDER`` in the environment, the numbers and screenshots of docs/guide/own_data.md are written to FOLDER.
"""

import csv
import json
import os
import random
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from browser import find_browser
from ogc.cli.app import build
from tickets import write_tickets

pytestmark = pytest.mark.slow

REVIEWED = 10
GUIDE = Path(__file__).parents[1] / "docs" / "guide" / "own_data.md"


@pytest.fixture(scope="module")
def chromium():
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install 'torch-ogc[test]'")
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium found")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def run_on_cpu_in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # the guide's numbers were measured on a CPU


def shown(number):
    """Return the commands of a block in the guide's step-by-step section, as lists of words."""
    _, section = GUIDE.read_text(encoding="utf-8").split("\n## From a file to predictions, step by step\n")
    block = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[number]
    return [shlex.split(line, comments=True) for line in block.splitlines()]


def follow(number, chromium, truth, screenshot):
    """Run the commands of the guide, and review ten samples before decisions are applied."""
    reviewed = 0, 0
    for _, *words in shown(number):
        if words[:2] == ["audit", "apply"]:
            reviewed = review(chromium, words[2], truth, screenshot)
        output = ogc(*words)
        if words[0] == "compare":
            assert json.loads(next(Path("compare").glob("*/compare.json")).read_text())["sentence"] in output
    return reviewed


def ogc(*arguments):
    result = CliRunner().invoke(build(), [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path, rows, without=()):
    names = [name for name in rows[0] if name not in without]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def accuracy_of(path, truth):
    """Return the share of correct predictions in a file."""
    rows = read(path)
    id_name = next(iter(rows[0]))
    assert len(rows) == len(truth)
    return sum(row["predicted"] == truth[row[id_name]] for row in rows) / len(rows)


def review(chromium, run, truth, screenshot):
    """Review ten samples on the page like a user who knows the true labels, and export the decisions.

    Nine are the worst ones. The tenth is one whose true label is neither the given nor the suggested one.
    Return how many labels changed, and how many labels were chosen by hand.
    """
    issues = {row["id"]: row for row in read(Path(run) / "audit" / "issues.csv")}
    context = chromium.new_context(viewport={"width": 1100, "height": 760})
    tab = context.new_page()
    tab.set_default_timeout(120_000)
    tab.goto((Path(run) / "audit" / "audit.html").absolute().as_uri())
    changed = by_hand = 0

    def decide():
        nonlocal changed, by_hand
        id = tab.locator(".card.current .id").text_content()
        row, name = issues[id], truth[id]
        if name == row["predicted_label"]:
            tab.keyboard.press("a")
        elif name == row["given_label"]:
            tab.keyboard.press("k")
        else:
            tab.keyboard.press("l")
            tab.select_option("#label", label=name)
            tab.click("#another button")
            by_hand += 1
        changed += name != row["given_label"]

    tab.locator(".card.current").focus()
    for _ in range(REVIEWED - 1):
        decide()
    if screenshot and "JOURNEY" in os.environ:
        tab.screenshot(path=Path(os.environ["JOURNEY"], screenshot))
    neither = [
        id
        for id, row in issues.items()
        if truth[id] not in (row["given_label"], row["predicted_label"]) and sum(id in other for other in issues) == 1
    ]
    tab.uncheck("#issues")  # the audit may suggest no label for it
    tab.fill("#search", max(neither, key=lambda id: issues[id]["is_label_issue"]))
    tab.locator("#shown").filter(has_text=re.compile("^1 shown")).wait_for()
    tab.locator(".card.current").focus()
    decide()
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Export decisions").click()
    download.value.save_as("decisions.csv")
    context.close()
    assert len(read("decisions.csv")) == REVIEWED
    return changed, by_hand


def check_improvement(name, labels, new, reviewed):
    """Check that labels and predictions improve from step to step."""
    sentence = json.loads(next(Path("compare").glob("*/compare.json")).read_text())["sentence"]
    accuracy = {step: accuracy_of(f"new-{step}.csv", new) for step in ("ce", "first", "fixed")}
    found = {"sentence": sentence, "labels": labels, "accuracy": accuracy, "changed, by hand": reviewed}
    print(found)
    if "JOURNEY" in os.environ:
        Path(os.environ["JOURNEY"], name).write_text(json.dumps(found, indent=2))
    assert labels["fixed"] > labels["given"] + 0.1
    assert accuracy["ce"] < accuracy["first"] < accuracy["fixed"]


def test_guide_for_a_table(chromium):
    write_tickets("all.csv", 1000, seed=1, wrong=0.2, telling=2, vocabulary=24)
    write_tickets("later.csv", 2000, seed=99, wrong=0, telling=2, vocabulary=24)
    truth, new = ({row["ticket"]: row["true"] for row in read(path)} for path in ("all.csv", "later.csv"))
    write("tickets.csv", read("all.csv"), without=["true"])
    write("new.csv", read("later.csv"), without=["true", "kind"])
    reviewed = follow(0, chromium, truth, "own_data_table.png")
    assert reviewed[1] >= 1  # a third label

    def correct(path):
        return sum(row["kind"] == truth[row["ticket"]] for row in read(path)) / len(truth)

    check_improvement("table.json", {"given": correct("tickets.csv"), "fixed": correct("fixed.csv")}, new, reviewed)


SHAPES = ("circle", "cross", "square")


def draw_shape(name, draw):
    """Draw a shape with random size, position and brightness on a noisy background."""
    noise = np.random.default_rng(draw.getrandbits(32)).integers(0, 100, (20, 20, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    pen, side = ImageDraw.Draw(image), draw.randint(10, 12)
    x, y, ink = draw.randint(3, 5), draw.randint(3, 5), (draw.randint(180, 255),) * 3
    box = (x, y, x + side, y + side)
    if name == "circle":
        pen.ellipse(box, outline=ink, width=2)
    elif name == "square":
        pen.rectangle(box, outline=ink, width=2)
    else:
        pen.line(box, fill=ink, width=2)
        pen.line((x, y + side, x + side, y), fill=ink, width=2)
    return image


def test_guide_for_a_folder_of_images(chromium):
    draw, truth, new = random.Random(0), {}, {}
    for number in range(600):
        name = draw.choice(SHAPES)
        given = draw.choice([other for other in SHAPES if other != name]) if draw.random() < 0.2 else name
        path = Path("photos", given, f"{number:03}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_shape(name, draw).save(path)
        truth[f"{given}/{number:03}.png"] = name
    Path("inbox").mkdir()
    for number in range(1000):
        new[f"{number:03}.png"] = draw.choice(SHAPES)
        draw_shape(new[f"{number:03}.png"], draw).save(Path("inbox", f"{number:03}.png"))
    names = {Path(path).name: name for path, name in truth.items()}
    reviewed = follow(1, chromium, truth, "own_data_images.png")

    def correct(folder):
        paths = list(Path(folder).glob("*/*.png"))
        assert len(paths) == len(names)
        return sum(path.parent.name == names[path.name] for path in paths) / len(names)

    check_improvement("images.json", {"given": correct("photos"), "fixed": correct("fixed")}, new, reviewed)
