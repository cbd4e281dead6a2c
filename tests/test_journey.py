"""From a file with wrong labels to predictions, as a user goes: every command, and the review page in a real browser.

With ``JOURNEY=FOLDER`` in the environment, the numbers and the screenshots of docs/guide/own_data.md are written there.
"""

import csv
import json
import os
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from typer.testing import CliRunner

from ogc.cli.app import build
from tickets import write_tickets

pytestmark = pytest.mark.slow

TEN = 10
SHORT = ("--epochs", "20", "--set", "batch_size=32", "--set", "hidden=64", "--device", "cpu")
TABLE = ("--label", "kind", "--id", "ticket", *SHORT, "--set", "lr=0.1")
PHOTOS = (*SHORT, "--set", "network=mlp", "--set", "augment=none", "--set", "size=16")


@pytest.fixture(scope="module")
def chromium():
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install 'torch-ogc[test]'")
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome", "chrome")]
    if not any(found):
        pytest.skip("no Chromium on this machine: the page is opened where one is installed")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=next(filter(None, found)), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


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


def compared(*arguments):
    """Run ``ogc compare``; its numbers, and the sentence that it ends with."""
    said = ogc("compare", *arguments, "--out", "compared")
    found = json.loads(Path("compared/compare.json").read_text())
    assert found["sentence"] in said
    return found


def predicted(run, data, truth):
    """Return the share of new samples that a run predicts right."""
    out = Path(f"{Path(run).name}-{Path(data).stem}.csv")
    ogc("predict", run, data, "--out", out, "--device", "cpu")
    rows = read(out)
    id_name = next(iter(rows[0]))
    assert len(rows) == len(truth)
    return sum(row["predicted"] == truth[row[id_name]] for row in rows) / len(rows)


def review(chromium, run, truth, screenshot):
    """Decide ten samples on the review page as a person does who knows the truth, and export the decisions.

    Nine are the worst ones. The tenth is one whose true label is neither the given nor the suggested one, if any is.
    Returns how many labels changed, and how many of the labels were chosen by hand.
    """
    issues = {row["id"]: row for row in read(Path(run) / "audit" / "issues.csv")}
    context = chromium.new_context(viewport={"width": 1100, "height": 760})
    tab = context.new_page()
    tab.set_default_timeout(15_000)
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
    for _ in range(TEN - 1):
        decide()
    if screenshot and "JOURNEY" in os.environ:
        tab.screenshot(path=Path(os.environ["JOURNEY"], screenshot))
    neither = [
        id
        for id, row in issues.items()
        if row["is_label_issue"].lower() == "true"
        and truth[id] not in (row["given_label"], row["predicted_label"])
        and sum(id in other for other in issues) == 1
    ]
    if neither:
        tab.fill("#search", neither[-1])
        tab.locator("#shown").filter(has_text=re.compile("^1 shown")).wait_for()
        tab.locator(".card.current").focus()
    decide()
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Export decisions").click()
    download.value.save_as("decisions.csv")
    context.close()
    assert len(read("decisions.csv")) == TEN
    return changed, by_hand


def record(name, numbers):
    if "JOURNEY" in os.environ:
        Path(os.environ["JOURNEY"], name).write_text(json.dumps(numbers, indent=2))
    print(numbers)


def test_a_table(chromium):
    write_tickets("all.csv", 500, seed=1, wrong=0.2, telling=2, vocabulary=24)
    rows = read("all.csv")
    truth = {row["ticket"]: row["true"] for row in rows}
    write("tickets.csv", rows, without=["true"])
    write_tickets("later.csv", 1000, seed=99, wrong=0, telling=2, vocabulary=24)
    new = {row["ticket"]: row["true"] for row in read("later.csv")}
    write("new.csv", read("later.csv"), without=["true", "kind"])

    def right(path):
        return sum(row["kind"] == truth[row["ticket"]] for row in read(path)) / len(truth)

    found = compared("tickets.csv", *TABLE, "--seeds", "1,2")
    best = found["best"]
    method = ("--method", best)
    accuracy = {"ce": predicted("compared/ce-1", "new.csv", new)}

    ogc("train", "tickets.csv", *TABLE, *method, "--out", "first")
    accuracy[best] = predicted("first", "new.csv", new)
    said = ogc("audit", "first")
    assert "labels are probably wrong" in said
    changed, by_hand = review(chromium, "first", truth, "own_data_table.png")
    assert by_hand >= 1  # a third label
    ogc("audit", "apply", "first", "--decisions", "decisions.csv", "--out", "ten.csv")
    ogc("audit", "apply", "first", "--out", "fixed.csv")
    labels = {path: right(path) for path in ("tickets.csv", "ten.csv", "fixed.csv")}
    assert labels["ten.csv"] == pytest.approx(labels["tickets.csv"] + changed / len(truth))
    assert labels["fixed.csv"] > labels["ten.csv"]
    for name in ("ten", "fixed"):
        ogc("train", f"{name}.csv", *TABLE, *method, "--out", name)
        accuracy[name] = predicted(name, "new.csv", new)
    record("table.json", {"sentence": found["sentence"], "right labels": labels, "accuracy": accuracy, "ten": changed})

    # Ten labels of 500 are worth less than the difference between two seeds, so that only a loss is ruled out there.
    assert accuracy[best] > accuracy["ce"]
    assert accuracy["ten"] > accuracy[best] - 0.02
    assert accuracy["fixed"] > accuracy[best] + 0.01
    assert accuracy["fixed"] > accuracy["ten"]


SHAPES = ("circle", "cross", "square")


def draw_shape(name, draw):
    """Draw a shape of any size, place and brightness, within limits, on a noisy ground."""
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


def test_a_folder_of_images(chromium):
    draw, truth, new = random.Random(0), {}, {}
    for number in range(360):
        name = draw.choice(SHAPES)
        given = draw.choice([other for other in SHAPES if other != name]) if draw.random() < 0.2 else name
        path = Path("photos", given, f"{number:03}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_shape(name, draw).save(path)
        truth[f"{given}/{number:03}.png"] = name
    Path("inbox").mkdir()
    for number in range(400):
        new[f"{number:03}.png"] = draw.choice(SHAPES)
        draw_shape(new[f"{number:03}.png"], draw).save(Path("inbox", f"{number:03}.png"))
    names = {Path(path).name: name for path, name in truth.items()}

    def right(folder):
        paths = list(Path(folder).glob("*/*.png"))
        return sum(path.parent.name == names[path.name] for path in paths) / len(names)

    found = compared("photos", *PHOTOS, "--seeds", "1", "--methods", "ce,ce+ogc")
    ogc("train", "photos", *PHOTOS, "--method", found["best"], "--out", "first")
    accuracy = {found["best"]: predicted("first", "inbox", new)}
    ogc("audit", "first")
    changed, _ = review(chromium, "first", truth, "own_data_images.png")
    ogc("audit", "apply", "first", "--decisions", "decisions.csv", "--copy", "ten-fixed")
    ogc("audit", "apply", "first", "--copy", "fixed")
    labels = {path: right(path) for path in ("photos", "ten-fixed", "fixed")}
    assert labels["ten-fixed"] == pytest.approx(labels["photos"] + changed / len(names))
    assert labels["fixed"] > labels["ten-fixed"]
    ogc("train", "fixed", *PHOTOS, "--method", found["best"], "--out", "again")
    accuracy["fixed"] = predicted("again", "inbox", new)
    record("images.json", {"sentence": found["sentence"], "right labels": labels, "accuracy": accuracy, "ten": changed})
    assert accuracy["fixed"] >= accuracy[found["best"]]  # which may have learnt the shapes from noisy labels already
