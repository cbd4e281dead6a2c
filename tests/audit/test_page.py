"""The audit page: its content, and its behaviour in a browser."""

import base64
import csv
import dataclasses
import hashlib
import html.parser
import io
import json
import re
import time

import pytest
import torch
from PIL import Image

from ogc.audit import find_label_issues
from ogc.audit.files import decided, read_audit, write_audit
from ogc.audit.findings import Findings
from ogc.audit.page import LONGEST_CELL, MATRIX, embedded, headline, page, thumbnail
from ogc.audit.suspicion import Issues
from ogc.training.survey import Point

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\"'&amp;\u2028<!--"


def make_findings(N=100, C=5, *, title="a run", names=None, seed=0, **more):
    draw = torch.Generator().manual_seed(seed)
    true = torch.randint(C, (N,), generator=draw)
    logits = torch.randn(N, C, generator=draw) + 3 * torch.nn.functional.one_hot(true, C)
    given = torch.where(torch.rand(N, generator=draw) < 0.3, (true + 1) % C, true)
    names = names or tuple(f"class {c}" for c in range(C))
    more = {"ids": [f"sample {i}" for i in range(N)], "true": true, "key": "made up"} | more
    run = {"id": "made up", "recipe": {"noise": None}, "source": None, "facts": {"started": "then"}, "sha256": {}}
    return Findings(
        title=title,
        class_names=names,
        issues=find_label_issues(given, logits=logits),
        run=run,
        **more,
    )


def solid_image(i, size=(16, 16)):
    """An image of one colour, different for each of 2**15 indices and distinguishable after JPEG compression."""
    colour = torch.tensor([8 * (i % 32), 8 * (i // 32 % 32), 8 * (i // 1024 % 32)], dtype=torch.uint8)
    return colour[:, None, None].expand(3, *size)


class Elements(html.parser.HTMLParser):
    """Scripts and styles of a page, as a browser sees them."""

    def __init__(self, text):
        super().__init__()
        self.found, self.metas, self.handlers = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.handlers += [name for name in attributes if name.startswith("on") or name == "style"]
        if tag in ("script", "style"):
            self.found.append([tag, attributes, ""])
        if tag == "meta":
            self.metas.append(attributes)

    def handle_data(self, data):
        if self.cdata_elem:
            self.found[-1][2] += data

    def contents(self, tag, **attributes):
        return [text for name, has, text in self.found if name == tag and has == attributes]


# --- the file --------------------------------------------------------------------------------------------------------


def test_embedded_data_round_trip():
    data = [HOSTILE, "\ud800", {"<": ">&"}]
    assert json.loads(embedded(data)) == data
    assert not set("<>&\u2028\u2029") & set(embedded(data))


def test_security_policy_allows_only_own_script_and_style():
    names = tuple(f"{HOSTILE}{c}" for c in range(5))
    ids = [f"{HOSTILE}{i}" for i in range(100)]
    text = page(make_findings(columns={HOSTILE: [HOSTILE] * 100}, names=names, ids=ids, title=HOSTILE, key=HOSTILE))
    elements = Elements(text)
    (script,), (style,) = elements.contents("script"), elements.contents("style")
    (policy,) = (meta["content"] for meta in elements.metas if meta.get("http-equiv") == "Content-Security-Policy")
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    for kind, content in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert allowed[kind] == f"'sha256-{digest}'"
    assert allowed["default-src"] == "'none'"
    assert elements.handlers == []
    assert "hacked" not in script + style
    (data,) = elements.contents("script", type="application/json", id="data")
    assert json.loads(data)["ids"][0] in ids
    assert not re.search(r"https?://", text)


def test_embedded_columns_are_sorted_by_issue_and_score():
    findings = make_findings(splits=["train"] * 60 + ["val"] * 40)
    (data,) = Elements(page(findings)).contents("script", type="application/json", id="data")
    data, issues = json.loads(data), findings.issues
    worst = issues.worst_first.tolist()
    assert data["ids"] == [f"sample {i}" for i in worst]
    assert data["splits"] == ["train" if i < 60 else "val" for i in worst]
    assert data["given"] == issues.given_label[worst].tolist()
    assert data["predicted"] == issues.predicted_label[worst].tolist()
    assert data["issue"] == issues.is_label_issue[worst].long().tolist()
    placed = [(-issue, score) for issue, score in zip(data["issue"], data["score"], strict=True)]
    assert placed == sorted(placed)
    assert data["score"] == pytest.approx((10_000 * issues.label_score[worst]).tolist(), abs=0.51)
    assert data["wrong"] == pytest.approx((10_000 * issues.wrong_probability[worst]).tolist(), abs=0.51)


def test_long_cells_are_truncated():
    columns = {"a": ["x" * 1_000_000, "", ""], "b": ["1", "2", ""]}
    findings = make_findings(3, columns=columns, key="", ids=["n" * 1_000_000, "1", "2"])
    text = page(findings)
    (data,) = Elements(text).contents("script", type="application/json", id="data")
    data = json.loads(data)
    cells = dict(zip(data["ids"], data["cells"], strict=True))
    assert data["fields"] == ["a", "b"]
    assert cells["1"] == ["", "2"]
    assert max(map(len, cells["n" * 1_000_000])) == LONGEST_CELL
    assert len(text) < 1_200_000  # ids are not truncated: the exported file identifies samples by them


def test_long_class_names_with_the_same_beginning_remain_different():
    names = tuple(f"Department of Agriculture and {what} affairs" for what in ("international", "internal"))
    text = page(make_findings(C=2, names=names))
    shown = set(re.findall(r'<th scope="row" title="[^"]*"><bdi>(.*)</bdi>', text))
    assert shown == {"Department of Agric...ernational affairs", "Department of Agric...d internal affairs"}


@pytest.mark.parametrize(
    ("shape", "size"),
    [((3, 100, 300), (64, 21)), ((3, 20, 10), (10, 20)), ((1, 64, 64), (64, 64)), ((3, 999, 1), (1, 64))],
)
def test_thumbnails(shape, size):
    image = Image.open(io.BytesIO(base64.b64decode(thumbnail(torch.full(shape, 50, dtype=torch.uint8)))))
    assert (image.format, image.mode, image.size) == ("JPEG", "L" if shape[0] == 1 else "RGB", size)
    assert image.getpixel((0, 0)) == pytest.approx(50 if shape[0] == 1 else (50,) * 3, abs=6)


def test_missing_or_empty_image_has_no_thumbnail():
    assert thumbnail(None) == thumbnail(torch.zeros(3, 0, 4, dtype=torch.uint8)) == ""


@pytest.mark.parametrize("limit", [0, 300])
def test_only_the_worst_samples_have_thumbnails(monkeypatch, limit):
    monkeypatch.setattr("ogc.audit.page.THUMBNAILS", limit)
    (data,) = Elements(page(make_findings(600, image=solid_image))).contents(
        "script", type="application/json", id="data"
    )
    found = json.loads(data)["thumbnails"]
    assert len(found) == limit
    assert all(found)


def test_matrix_shows_classes_with_issues():
    C = 200
    given = torch.arange(C).repeat(3)
    probabilities = torch.nn.functional.one_hot(given, C).double()
    probabilities[150], probabilities[350] = 0, 0  # given 150, predicted 7
    probabilities[[150, 350], 7] = 1
    issues = find_label_issues(given, probabilities)
    text = page(Findings("t", [str(i) for i in range(3 * C)], tuple(f"class {c}" for c in range(C)), issues))
    assert (
        len(set(re.findall(r'<button type="button" tabindex="-1" data-given="(\d+)" data-suggested="(\d+)"', text)))
        == 1
    )
    assert 'data-given="150" data-suggested="7" data-count="2"' in text
    assert text.count('<td class="same"') == MATRIX
    assert f"the {MATRIX} with the most issues, of 200" in text


def test_headline():
    issues = find_label_issues([0, 1, 0, 1], [[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.4, 0.6]])  # two issues
    numbers = headline(Findings("t", list("abcd"), ("x", "y"), issues, true=torch.tensor([0, 0, 0, 0])))
    assert [number.replace("\u00a0", " ") for number, _ in numbers] == ["2", "50.0 %", "50.0 %", "50.0 %", "50.0 %"]
    assert len(headline(Findings("t", list("abcd"), ("x", "y"), issues))) == 2
    assert numbers[1][1] == "of all labels wrong (estimate)"
    short = [Point(1, 0.9, 0.9, True), Point(2, 0.5, 0.7, True)]
    doubtful = Findings("t", list("abcd"), ("x", "y"), issues, surveys=short)
    assert headline(doubtful)[1][1].endswith("of all labels wrong (unreliable estimate)")
    assert f'<p class="notice">{doubtful.unreliable}</p>' in page(doubtful)


def test_suggestions_are_doubtful_only_if_there_are_many_and_their_scores_overlap():
    draw = torch.Generator().manual_seed(0)

    def doubtful(issues, apart):
        """Of 1,000 labels. The margins of the issues are ``apart`` standard deviations below those of the others."""
        is_issue = torch.arange(1000) < issues
        margin = torch.randn(1000, generator=draw) - apart * is_issue
        given, half = torch.zeros(1000, dtype=torch.int64), torch.full((1000,), 0.5)
        found = Issues(is_issue, margin.sigmoid(), given, is_issue.long(), half, half, 2)
        return Findings("t", list(map(str, range(1000))), ("x", "y"), found).doubtful is not None

    assert doubtful(400, 2.0)
    assert not doubtful(400, 4.0), "separated"
    assert not doubtful(150, 2.0), "few"


@pytest.mark.parametrize(
    ("wrong", "limit"),
    [
        ([0.2, 0.959, 0.97, 0.98], 0.95),
        ([0.6, 1.0, 1.0, 1.0], 0.99),  # a rounded 1.0 would leave out some that are as certain
        ([0.999, 1.0, 1.0, 1.0], None),
        ([0.5, 0.5, 0.5, 0.5], None),
        ([], None),
    ],
)
def test_suggested_limit_keeps_at_least_half_and_leaves_something_out(wrong, limit):
    one = torch.ones(len(wrong), dtype=torch.int64)
    issues = Issues(one.bool(), one * 0.1, one * 0, one, torch.tensor(wrong), one.float(), 2)
    assert Findings("t", list(map(str, wrong)), ("x", "y"), issues).limit == limit


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture
def visit(chromium, tmp_path):
    """Open a page in a new browser context. Fail if anything is logged or fetched."""
    contexts, logged, fetched = [], [], []

    def visit(text, *, width=1280, scheme="light", before=None):
        path = tmp_path / "audit.html"
        if text is not None:
            path.write_text(text, encoding="utf-8")
        context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(120_000)
        tab.on("console", lambda message: logged.append(message.text))
        tab.on("pageerror", lambda error: logged.append(str(error)))
        tab.on("request", lambda request: fetched.append(request.url))
        if before:
            tab.add_init_script(before)
        tab.goto(path.as_uri())
        return tab

    yield visit
    for context in contexts:
        context.close()
    assert logged == []
    assert {url.split(":")[0] for url in fetched} <= {"file", "blob", "data"}
    assert {url.split("/")[-1] for url in fetched if url.startswith("file")} == {"audit.html"}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """50,000 samples, and the folder of their audit."""
    findings, folder = make_findings(50_000, 10, image=solid_image), tmp_path_factory.mktemp("audit")
    write_audit(findings, folder)
    return findings, folder


def wait_for_text(tab, element, text):
    """Wait until an element has the text. The page's Content-Security-Policy blocks ``wait_for_function``."""
    tab.locator(element).filter(has_text=text).wait_for(state="attached")


def scroll(tab, share):
    """Scroll to a share of the height and wait until the cards change, except the first, which is current."""
    before = card_ids(tab)[1:]
    tab.evaluate(f"scrollTo(0, {share} * document.documentElement.scrollHeight)")
    poll(lambda: card_ids(tab)[1:] != before)


def poll(holds):
    """Wait until ``holds()``."""
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def count_nodes(tab):
    return tab.evaluate("document.querySelectorAll('*').length")


def card_ids(tab):
    """Ids of the rendered cards, in page order."""
    return tab.locator(".card .id").all_text_contents()


def current_id(tab):
    return tab.locator(".card.current .id").text_content()


def export(tab, path):
    with tab.expect_download() as download:
        tab.keyboard.press("e")
    download.value.save_as(path)
    limit = csv.field_size_limit(10_000_000)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    csv.field_size_limit(limit)
    return rows


def decisions_by_id(rows):
    assert rows[0] == ["id", "decision", "given_label", "suggested_label"]
    return {row[0]: tuple(row[1:]) for row in rows[1:]}


@pytest.mark.slow
def test_filter_review_and_export_fifty_thousand_samples(visit, large, tmp_path):
    findings, folder = large
    issues, names = findings.issues, findings.class_names
    tab = visit((folder / "audit.html").read_text())
    assert count_nodes(tab) < 1500
    worst = issues.worst_first[issues.is_label_issue[issues.worst_first]]
    assert card_ids(tab)[0] == findings.ids[worst[0]]
    assert f"{len(worst):,} shown" in tab.text_content("#shown")

    # Filter by a cell of the matrix.
    tab.click("#matrix button[data-given='3'][data-suggested='2']")
    pair = [i for i in worst.tolist() if (issues.given_label[i], issues.predicted_label[i]) == (3, 2)]
    assert len(pair) == issues.confusion()[3, 2] > 10
    assert f"{len(pair):,} shown" in tab.text_content("#shown")
    assert card_ids(tab)[:10] == [findings.ids[i] for i in pair[:10]]

    # Review ten samples by keyboard. Each decision moves to the next sample.
    expected = {}
    for k, i in enumerate(pair[:10]):
        assert current_id(tab) == findings.ids[i]
        key, word = [("a", "accept"), ("k", "keep"), ("s", "skip")][k % 3]
        tab.keyboard.press(key)
        expected[findings.ids[i]] = (word, names[3], names[2])
    assert decisions_by_id(export(tab, tmp_path / "decisions.csv")) == expected
    fixed = decided(read_audit(folder), tmp_path / "decisions.csv")  # as in ogc audit apply
    changed = {i: name for i, name in enumerate(fixed) if name != names[issues.given_label[i]]}
    assert changed == dict.fromkeys(pair[:10:3], names[2])

    # Undo the last decision and make a different one.
    tab.keyboard.press("u")
    assert current_id(tab) == findings.ids[pair[9]]
    assert len(decisions_by_id(export(tab, tmp_path / "other.csv"))) == 9
    tab.keyboard.press("k")
    expected[findings.ids[pair[9]]] = ("keep", names[3], names[2])

    # Decisions survive a reload, and the filter for undecided samples hides them.
    tab.reload()
    assert decisions_by_id(export(tab, tmp_path / "other.csv")) == expected
    tab.select_option("#given", "3")
    tab.select_option("#suggested", "2")
    tab.check("#undecided")
    assert f"{len(pair) - 10:,} shown" in tab.text_content("#shown")
    assert current_id(tab) == findings.ids[pair[10]]
    tab.locator(".card.current").focus()
    tab.keyboard.press("a")
    assert current_id(tab) == findings.ids[pair[11]]

    # Another browser has no decisions until it loads the file.
    other = visit(None)
    assert "0 decided" in other.text_content("#shown")
    other.set_input_files("#file", tmp_path / "other.csv")
    wait_for_text(other, "#shown", "10 decided")
    assert decisions_by_id(export(other, tmp_path / "third.csv")) == expected


@pytest.mark.slow
def test_scrolling_renders_few_nodes_and_the_right_images(visit, large):
    findings, folder = large
    worst = findings.issues.worst_first.tolist()
    tab = visit((folder / "audit.html").read_text())
    tab.uncheck("#issues")
    assert "50,000 shown" in tab.text_content("#shown")
    for share in (0.1, 0.37, 1):
        scroll(tab, share)
        assert count_nodes(tab) < 1500
    poll(lambda: card_ids(tab)[-1] == findings.ids[worst[-1]])
    assert count_nodes(tab) < 1500
    assert "no thumbnail" in tab.locator(".card").last.text_content()  # only the worst 20,000 have one

    scroll(tab, 0.37)

    def images_are_right():
        seen = tab.evaluate(
            """[...document.querySelectorAll('.card')].map(card => {
                const canvas = new OffscreenCanvas(16, 16).getContext('2d');
                canvas.drawImage(card.querySelector('img'), 0, 0);
                return [card.querySelector('.id').textContent, ...canvas.getImageData(8, 8, 1, 1).data];
            })"""
        )[1:]  # the first is the current one, which stays when out of view
        right = [solid_image(int(name.split()[1]))[:, 0, 0].tolist() for name, *_ in seen]
        return len(seen) > 20 and [colour[:3] for _, *colour in seen] == [pytest.approx(each, abs=4) for each in right]

    poll(images_are_right)


@pytest.mark.slow
def test_hostile_names_and_cells_are_shown_as_text(visit, tmp_path):
    N = 60
    ids = [f'{i},"quoted"\n{HOSTILE}' for i in range(N - 2)] + ["=1+1\r\n ", "n" * 1_000_000]
    names = (HOSTILE, "c" * 1_000_000, 'comma, "quote"', "__proto__", "\u202ereversed")
    row = {HOSTILE: HOSTILE, "long": "w" * 1_000_000, **{f"column {c}": str(c) for c in range(20)}}
    findings = make_findings(
        N, columns={name: [cell] * N for name, cell in row.items()}, ids=ids, names=names, title=HOSTILE
    )
    write_audit(findings, tmp_path / "audit")
    tab = visit((tmp_path / "audit" / "audit.html").read_text(), width=320)
    tab.click("#fold")
    tab.uncheck("#issues")
    assert tab.evaluate("window.hacked") is None
    assert tab.evaluate("document.querySelectorAll('img[src]').length") == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= 320
    assert tab.title() == f"{HOSTILE}: label audit"
    assert HOSTILE[:40] in tab.locator(".card dd").first.text_content()
    assert tab.locator(".card").first.locator("dt").count() == 8  # the details show all of them:
    tab.locator(".card").first.focus()
    tab.keyboard.press("Enter")
    assert tab.locator("#detail-fields tr").count() == 22
    tab.keyboard.press("Escape")
    for _ in range(N):
        tab.keyboard.press("k")
    found = decisions_by_id(export(tab, tmp_path / "decisions.csv"))
    given = findings.issues.given_label.tolist()
    assert {name: row[1] for name, row in found.items()} == {ids[i]: names[given[i]] for i in range(N)}
    kept = decided(read_audit(tmp_path / "audit"), tmp_path / "decisions.csv")
    assert kept == [names[label] for label in given]

    other = visit(None)
    other.set_input_files("#file", tmp_path / "decisions.csv")
    wait_for_text(other, "#shown", "60 decided")
    for content, answer in (("id,decision\n1,keep\n", "not a decisions file"), ('id,"', "quote")):
        wrong = tmp_path / "wrong.csv"
        wrong.write_text(content)
        other.set_input_files("#file", wrong)
        wait_for_text(other, "#message", answer)
    lines = "id,decision,given_label,suggested_label\nsample 1,accept,another,label\nunknown,keep,a,b\n"
    wrong.write_text(lines)
    other.set_input_files("#file", wrong)
    wait_for_text(other, "#message", "0 decisions loaded; 2 skipped that do not match this audit, the first in line 2")
    assert other.evaluate("window.hacked") is None


@pytest.mark.slow
def test_keyboard_navigation(visit):
    findings = make_findings(200, image=solid_image)
    issues = findings.issues
    worst = [findings.ids[i] for i in issues.worst_first.tolist() if issues.is_label_issue[i]]
    tab = visit(page(findings))
    seen = []
    for _ in range(60):  # no focus trap: Tab moves from the first element to a card and past it
        tab.keyboard.press("Tab")
        seen.append(tab.evaluate("document.activeElement.className || document.activeElement.id"))
        outlined = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outlined != "none" or seen[-1] == ""
        if tab.evaluate("document.activeElement === document.body"):
            break
    assert seen[0] == "jump"
    assert seen.index("search") < seen.index("card current")
    assert tab.evaluate("document.activeElement === document.body")

    tab.locator(".card.current").focus()
    tab.keyboard.press("ArrowRight")
    assert current_id(tab) == worst[1]
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("p")
    tab.keyboard.press("ArrowUp")
    assert current_id(tab) == worst[0]
    tab.keyboard.press("End")
    assert current_id(tab) == worst[-1]
    tab.keyboard.press("Home")
    tab.keyboard.press("Enter")
    assert tab.text_content("#detail-id") == worst[0]
    tab.keyboard.press("a")  # decides in the details, which then show the next sample
    assert tab.text_content("#detail-id") == worst[1]
    tab.keyboard.press("Escape")
    wait_for_text(tab, ".card:focus", re.compile(f"{worst[1]}(?!\\d)"))

    tab.keyboard.press("/")
    tab.keyboard.type("sample 1")  # letters are not shortcuts here
    shown = [name for name in worst if "sample 1" in name]
    wait_for_text(tab, "#shown", f"{len(shown)} shown, 1 decided")
    tab.keyboard.press("Escape")
    wait_for_text(tab, ".card:focus", re.compile(f"{shown[0]}(?!\\d)"))
    tab.keyboard.press("?")
    tab.keyboard.press("a")
    assert "1 decided" in tab.text_content("#shown")
    tab.uncheck("#letters")
    tab.keyboard.press("Escape")
    tab.keyboard.press("a")
    assert "1 decided" in tab.text_content("#shown")

    tab.click("#clear")
    tab.fill("#lowest", "0.2")
    middle = [
        findings.ids[i] for i in issues.worst_first.tolist() if issues.is_label_issue[i] and issues.label_score[i] > 0.2
    ]
    assert card_ids(tab)[0] == middle[0]
    tab.fill("#lowest", "0.99")
    assert tab.text_content("#end") == "No sample matches."

    tab.click("#clear")
    tab.uncheck("#issues")
    tab.locator(".card.current").focus()
    tab.keyboard.press("End")  # the best label has no suggestion to accept
    assert tab.locator(".card.current [data-decision=accept]").is_disabled()


@pytest.mark.slow
def test_choose_any_label_and_undo(visit, tmp_path):
    findings = make_findings(200, image=solid_image)
    write_audit(findings, tmp_path / "audit")
    issues, names = findings.issues, findings.class_names
    worst = [i for i in issues.worst_first.tolist() if issues.is_label_issue[i]]
    given, suggested = issues.given_label.tolist(), issues.predicted_label.tolist()
    third = [next(c for c in range(5) if c not in (given[i], suggested[i])) for i in worst]
    tab = visit(page(findings))
    card = tab.locator(".card.current")

    # With the mouse: after a label is chosen, the dialog closes and the next sample is current.
    card.locator(".another").click()
    assert tab.text_content("#detail-id") == findings.ids[worst[0]]
    assert tab.locator("#label").input_value() == str(suggested[worst[0]])
    tab.select_option("#label", str(third[0]))
    tab.click("#another button")
    assert not tab.is_visible("#details")
    assert current_id(tab) == findings.ids[worst[1]]
    first = tab.locator(".card").first
    assert first.locator(".label").nth(1).text_content().split(" ", 1) == ["chosen", names[third[0]]]
    assert "Accepted" in tab.text_content("#message")

    # With the keyboard: choosing the given label means keep, the suggested one accept.
    for k, label in ((1, third[1]), (2, given[worst[2]]), (3, suggested[worst[3]])):
        assert current_id(tab) == findings.ids[worst[k]]
        tab.keyboard.press("l")
        assert tab.evaluate("document.activeElement.id") == "label"
        tab.select_option("#label", str(label))
        tab.keyboard.press("Tab")
        tab.keyboard.press("Enter")
    expected = {
        findings.ids[worst[0]]: ("accept", names[given[worst[0]]], names[third[0]]),
        findings.ids[worst[1]]: ("accept", names[given[worst[1]]], names[third[1]]),
        findings.ids[worst[2]]: ("keep", names[given[worst[2]]], names[suggested[worst[2]]]),
        findings.ids[worst[3]]: ("accept", names[given[worst[3]]], names[suggested[worst[3]]]),
    }
    path = tmp_path / "decisions.csv"
    assert decisions_by_id(export(tab, path)) == expected
    fixed = decided(read_audit(tmp_path / "audit"), path)
    assert [fixed[i] for i in worst[:3]] == [names[third[0]], names[third[1]], names[given[worst[2]]]]

    # A choice survives a reload, can be loaded from a file, and can be undone.
    tab.reload()
    assert decisions_by_id(export(tab, tmp_path / "other.csv")) == expected
    other = visit(None)
    other.set_input_files("#file", path)
    wait_for_text(other, "#message", re.compile("^4 decisions loaded$"))
    assert decisions_by_id(export(other, tmp_path / "other.csv")) == expected
    other.locator(".card.current").focus()
    other.keyboard.press("a")  # the first sample again, now with the suggested label
    assert (
        decisions_by_id(export(other, tmp_path / "other.csv"))[findings.ids[worst[0]]][2] == names[suggested[worst[0]]]
    )
    other.keyboard.press("u")
    assert decisions_by_id(export(other, tmp_path / "other.csv")) == expected
    other.keyboard.press("u")
    assert other.locator("#undo").is_disabled()
    assert stored_decisions(other) == []

    # A label can be chosen for a sample without a suggestion.
    other.uncheck("#issues")
    other.locator(".card.current").focus()
    other.keyboard.press("End")
    assert other.locator(".card.current .suggested").text_content() == "\u2013"
    best = issues.worst_first.tolist()[-1]
    other.keyboard.press("l")
    other.select_option("#label", str((given[best] + 1) % 5))
    other.click("#another button")
    row = decisions_by_id(export(other, tmp_path / "other.csv"))[findings.ids[best]]
    assert row == ("accept", names[given[best]], names[(given[best] + 1) % 5])


@pytest.mark.slow
def test_unusual_cells_are_marked_in_card_and_details(visit):
    findings = make_findings(200, 2)
    given = findings.issues.given_label.tolist()
    odd = findings.issues.worst_first.tolist()[0]
    fields = [{f"c{c}": str(100 * given[i] + i % 10) for c in range(12)} | {"note": f"row {i}"} for i in range(200)]
    fields[odd] |= {"c3": "9999", "c11": "", "note": "unlike any other"}
    tab = visit(
        page(dataclasses.replace(findings, columns={name: [row[name] for row in fields] for name in fields[0]}))
    )
    card = tab.locator(".card.current")
    assert card.locator(".unusual").all_text_contents() == ["9999"]
    card.focus()
    tab.keyboard.press("Enter")
    assert tab.text_content("#columns summary") == "All 13 columns, 2 unusual"
    assert tab.locator("#detail-fields tr:has(.unusual) th").all_text_contents() == ["c3", "c11"]
    tab.click("#columns summary")
    assert not tab.is_visible("#detail-fields")
    tab.keyboard.press("n")  # stays collapsed
    assert tab.text_content("#columns summary") == "All 13 columns"
    assert not tab.is_visible("#detail-fields")


@pytest.mark.slow
def test_cards_do_not_repeat_the_id_and_the_labels(visit):
    findings = make_findings()
    cells = dict.fromkeys(["customer", "age", "truth", "city", "status", "<b>"], ["1"] * 100)
    source = {"kind": "table", "id": "customer", "label": "status", "true": "truth"}
    tab = visit(page(dataclasses.replace(findings, columns=cells, run=findings.run | {"source": source})))
    card = tab.locator(".card.current")
    assert card.locator("dt").all_text_contents() == ["age", "city", "<b>"]
    card.focus()
    tab.keyboard.press("Enter")
    assert tab.locator("#detail-fields th").all_text_contents() == list(cells)  # the details have all columns


@pytest.mark.slow
def test_cards_round_numbers_and_show_the_end_of_long_names(visit):
    cells = {
        "20.359781270308765": "20.3598",
        "1" * 101 + ".25": "1" * 101 + ".25",
        "00012.34567": "00012.34567",
        "-0.000012345678": "-0.0000123457",
        "1234567.891234": "1234568",
        "1.2.3456789": "1.2.3456789",
        "0.1234567 m": "0.1234567 m",
        "": "\u00a0",
    }
    columns = {f"c{c}": [cell] * 100 for c, cell in enumerate(cells)}
    names = tuple(f"Department of Agriculture and {what} affairs" for what in ("international", "internal"))
    tab = visit(page(make_findings(C=2, names=names, columns=columns)))
    card = tab.locator(".card.current")
    assert card.locator("dd").all_text_contents() == list(cells.values())
    assert card.locator("dd span").first.get_attribute("title") == "20.359781270308765"
    labels = {card.locator(".given").text_content(), card.locator(".suggested").text_content()}
    assert labels == {"Department of Agric...ernational affairs", "Department of Agric...d internal affairs"}
    for name in (".given", ".suggested"):
        assert card.locator(name).evaluate("label => label.scrollHeight <= label.clientHeight"), "nothing is cut off"
    assert tab.evaluate("[...document.querySelectorAll('#matrix bdi')].every(b => b.scrollWidth <= b.clientWidth)")
    card.focus()
    tab.keyboard.press("Enter")
    assert tab.locator("#detail-fields td").all_text_contents() == [cell or "\u00a0" for cell in cells]


@pytest.mark.slow
def test_help_fits_a_phone_and_breaks_no_option(visit):
    tab = visit(page(make_findings()), width=375)
    tab.click("#ask")
    assert tab.evaluate("document.getElementById('help').scrollWidth <= document.getElementById('help').clientWidth")
    options = tab.locator("#help code span")
    assert options.all_text_contents() == [
        "--decisions decisions.csv",
        "--out FILE",
        "--copy DIR",
        "--out FILE",
        "--accept-above P",
    ]
    assert all(options.evaluate_all("all => all.map(span => span.getClientRects().length === 1)"))


@pytest.mark.slow
def test_works_without_local_storage(visit, tmp_path):
    forbid = (
        "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no', 'SecurityError'); }});"
    )
    tab = visit(page(make_findings()), before=forbid)
    assert tab.is_visible("#not-stored")
    tab.locator(".card.current").focus()
    tab.keyboard.press("a")
    assert len(decisions_by_id(export(tab, tmp_path / "decisions.csv"))) == 1
    assert not visit(None).is_visible("#not-stored")


@pytest.mark.slow
def test_no_issues_and_no_samples(visit):
    right = find_label_issues([0, 1], [[0.9, 0.1], [0.2, 0.8]])
    tab = visit(page(Findings("t", ["x", "y"], ("a", "b"), right)))
    assert "No label looks wrong" in tab.text_content("#end")
    tab.uncheck("#issues")
    assert card_ids(tab) == ["y", "x"]
    empty = find_label_issues(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2))
    tab = visit(page(Findings("t", [], ("a", "b"), empty)))
    assert tab.text_content("#shown") == "0 shown, 0 decided"
    for key in "aknpu":
        tab.keyboard.press(key)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pictures", "rows", "bare"])
def test_narrow_screen_and_dark_mode(visit, kind):
    images = {"image": lambda i: solid_image(i, (16 + i % 5 * 90, 16 + i % 3 * 90))}
    shown = {"pictures": images, "rows": {"columns": {"a" * 99: ["b" * 999] * 300}}, "bare": {}}[kind]
    text = page(make_findings(300, **shown, names=tuple("abcdefghijklmnopqrstuvwxyz"[c] * 60 for c in range(5))))
    backgrounds = {}
    for width, scheme in ((320, "light"), (1280, "dark")):
        tab = visit(text, width=width, scheme=scheme)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert kind in tab.locator("#gallery").get_attribute("class")
        tab.evaluate("document.getElementById('bar').scrollIntoView()")
        tab.locator(".card").nth(2).wait_for(state="attached")
        cards = tab.evaluate("[...document.querySelectorAll('.card')].map(c => c.getBoundingClientRect().toJSON())")
        assert all(card["left"] >= 0 and card["right"] <= width for card in cards)
        assert len({round(card["height"]) for card in cards}) == 1
        assert tab.evaluate("[...document.querySelectorAll('.card')].every(c => c.scrollHeight <= c.clientHeight)")
        first, second = cards[:2]
        assert first["right"] <= second["left"] or first["bottom"] <= second["top"]
        backgrounds[scheme] = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert backgrounds == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 22, 26)"}


def stored_decisions(tab):
    """Decisions in local storage, one letter per sample, without undecided ones at the end."""
    return tab.evaluate("Object.keys(localStorage).filter(k => k.startsWith('ogc-audit:')).map(k => localStorage[k])")


@pytest.mark.slow
def test_keys_never_decide_hidden_samples(visit, tmp_path):
    findings = make_findings(200)
    issues = findings.issues
    worst = [i for i in issues.worst_first.tolist() if issues.is_label_issue[i]]
    tab = visit(page(findings))
    tab.locator(".card.current").focus()
    tab.keyboard.press("a")
    assert stored_decisions(tab) == ["a"]

    # Undo while a filter hides the sample: the next key decides the current one.
    other = next(i for i in worst if issues.given_label[i] != issues.given_label[worst[0]])
    tab.select_option("#given", str(int(issues.given_label[other])))
    tab.locator(".card.current").focus()
    tab.keyboard.press("u")
    assert stored_decisions(tab) == []
    assert current_id(tab) == findings.ids[other]
    tab.keyboard.press("k")
    assert decisions_by_id(export(tab, tmp_path / "decisions.csv")).keys() == {findings.ids[other]}
    before = stored_decisions(tab)

    # Load decisions while no sample is shown: keys decide nothing.
    tab.fill("#search", "no such sample")
    wait_for_text(tab, "#shown", re.compile("^0 shown"))
    tab.set_input_files("#file", tmp_path / "decisions.csv")
    wait_for_text(tab, "#message", "1 decision loaded")
    tab.locator("#gallery").focus()
    for key in "aks":
        tab.keyboard.press(key)
    assert stored_decisions(tab) == before


@pytest.mark.slow
def test_enter_searches_immediately_and_focuses_the_samples(visit, tmp_path):
    findings = make_findings(200)
    issues = findings.issues
    worst = [findings.ids[i] for i in issues.worst_first.tolist() if issues.is_label_issue[i]]
    tab = visit(page(findings))
    tab.locator(".card.current").focus()
    tab.keyboard.press("a")
    tab.evaluate("window.loaded = 1")
    last = next(name for name in reversed(worst) if sum(name in other for other in findings.ids) == 1)
    tab.keyboard.press("/")
    tab.keyboard.insert_text(last)
    tab.keyboard.press("Enter")
    tab.keyboard.press("s")  # decides the sample that was found, and is not typed into the field
    wait_for_text(tab, "#message", "Skipped")
    assert tab.text_content("#shown").startswith("1 shown, 2 decided")
    assert tab.input_value("#search") == last
    assert tab.evaluate("window.loaded") == 1
    assert stored_decisions(tab)[0].strip(".")[0] == "a"
    found = decisions_by_id(export(tab, tmp_path / "decisions.csv"))
    assert {name: row[0] for name, row in found.items()} == {worst[0]: "accept", last: "skip"}

    tab.fill("#search", "")
    tab.fill("#highest", "0.1")
    tab.keyboard.press("Enter")
    few = int((issues.label_score[issues.is_label_issue] <= 0.1).sum())
    assert tab.text_content("#shown").startswith(f"{few} shown")


@pytest.mark.slow
def test_key_scrolls_to_out_of_view_sample_before_deciding(visit):
    tab = visit(page(make_findings(2000, image=solid_image)))
    tab.locator(".card.current").focus()
    first = current_id(tab)
    scroll(tab, 1)
    tab.keyboard.press("a")
    wait_for_text(tab, "#message", "press again")
    assert stored_decisions(tab) == []
    assert current_id(tab) == first
    tab.keyboard.press("a")
    assert stored_decisions(tab) == ["a"]


@pytest.mark.slow
def test_details_follow_decisions_in_another_tab(visit):
    findings = make_findings(200)
    worst = [findings.ids[i] for i in findings.issues.worst_first.tolist()]
    tab = visit(page(findings))
    tab.check("#undecided")
    tab.locator(".card.current").focus()
    tab.keyboard.press("Enter")
    assert tab.text_content("#detail-id") == worst[0]
    tab.evaluate(
        """const key = 'ogc-audit:' + document.body.dataset.key;
        localStorage.setItem(key, 'k');
        dispatchEvent(new StorageEvent('storage', {key}));"""
    )
    assert tab.text_content("#detail-id") == worst[1]
    tab.keyboard.press("a")
    assert stored_decisions(tab) == ["ka"]


@pytest.mark.slow
def test_holding_a_key_decides_once(visit):
    tab = visit(page(make_findings(200)))
    tab.locator(".card.current").focus()
    for letters, key in (("a", "a"), ("ak", "k"), ("aks", "s"), ("ak", "u")):
        for _ in range(5):  # down without up: the browser reports a repeat
            tab.keyboard.down(key)
        assert stored_decisions(tab) == [letters]
        tab.keyboard.up(key)
    tab.keyboard.press("Enter")
    tab.locator("#details [data-decision=skip]").focus()
    for _ in range(5):
        tab.keyboard.down("Enter")
    assert stored_decisions(tab) == ["aks"]
    tab.keyboard.up("Enter")
    for _ in range(3):
        tab.keyboard.down("n")  # navigation may repeat
    assert tab.text_content("#detail-facts tr:last-child td").startswith("7 of")


@pytest.mark.slow
def test_blank_lines_in_a_loaded_file_are_ignored(visit, tmp_path):
    tab = visit(page(make_findings()))
    tab.locator(".card.current").focus()
    tab.keyboard.press("k")
    export(tab, path := tmp_path / "decisions.csv")
    header = b',"a no\nte"\n\n'  # lines 1 and 2, and a blank line
    path.write_bytes(path.read_bytes().replace(b"\n", header, 1) + b"unknown,keep,a,b\n\r\n\n")
    tab.set_input_files("#file", path)
    wait_for_text(
        tab, "#message", re.compile("^1 decision loaded; 1 skipped that does not match this audit, in line 5$")
    )


def test_storage_key_depends_on_the_order_of_the_samples():
    findings = make_findings()
    issues = findings.issues
    reordered = dataclasses.replace(findings, issues=dataclasses.replace(issues, label_score=1 - issues.label_score))
    assert not reordered.issues.worst_first.equal(issues.worst_first)
    keys = [re.search(r'data-key="([^"]*)"', page(each))[1] for each in (findings, make_findings(), reordered)]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.slow
def test_ids_that_are_not_utf8_are_exported_and_loaded(visit, tmp_path):
    """The skull's low surrogate, U+DC80, must not be taken for an escaped byte of a file name."""
    names = [b"caf\xe9.png", b"caf\xe8.png", "\U0001f480 caf\u00e9.png".encode(), "\ufffd".encode(), b"\x80\xff,\"'\n"]
    ids = [name.decode("utf-8", "surrogateescape") for name in names]
    findings = make_findings(5, ids=ids, names=("\u00e9", "\U0001f480", "c", "d", "\ufeff"))
    write_audit(findings, tmp_path / "audit")
    tab = visit((tmp_path / "audit" / "audit.html").read_text())
    tab.uncheck("#issues")
    tab.locator(".card.current").focus()
    for _ in names:
        tab.keyboard.press("k")
    with tab.expect_download() as download:
        tab.keyboard.press("e")
    download.value.save_as(path := tmp_path / "decisions.csv")
    content = path.read_bytes()
    assert all(name.replace(b'"', b'""') in content for name in names)
    given = [findings.class_names[label] for label in findings.issues.given_label.tolist()]
    assert decided(read_audit(tmp_path / "audit"), path) == given
    path.write_bytes(b"\xef\xbb\xbf" + content)  # a byte-order mark, as spreadsheets write
    other = visit(None)
    other.set_input_files("#file", path)
    wait_for_text(other, "#message", re.compile("^5 decisions loaded$"))
    wait_for_text(other, "#shown", "5 decided")
