"use strict";
{
const $ = id => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const N = data.ids.length;
const DECISIONS = ["", "accept", "keep", "skip"];  // as in the exported file; stored by index
const DONE = ["", "Accepted", "Kept", "Skipped"];
const FIELDS_ON_CARD = 8, LONGEST = 300, LONGEST_NAME = 40;
const TALLEST = 15e6;  // pixels; browsers cannot lay out much more
const pictures = data.thumbnails.some(Boolean);
function cutMiddle(text, longest = LONGEST) {
  const tail = Math.floor((longest - 3) / 2);
  return text.length > longest ? text.slice(0, longest - 3 - tail) + "..." + text.slice(-tail) : text;
}
function rounded(text) {  // to six digits, or to a whole number if that has more; other text is unchanged
  const fraction = text.length > 8 && /^[+-]?(0|[1-9]\d{0,15})\.\d+(e[+-]?\d\d?)?$/i.test(text);
  return fraction ? String(Number(Number(text).toPrecision(Math.max(6, text.indexOf("."))))) : text;
}
const names = data.classes.map(name => cutMiddle(name, LONGEST_NAME));
const count = n => n.toLocaleString("en");
const score = (i, digits = 3) => (data.score[i] / 1e4).toFixed(digits);
const percent = share => (share >= 9950 ? ">99" : share < 50 ? "<1" : (share / 100).toFixed(0)) + "\u00a0%";
const hasSuggestion = i => data.predicted[i] !== data.given[i];
const label = i => chosen.get(i) ?? data.predicted[i];  // the label that accepting sets
const suggestion = i => label(i) === data.given[i] ? "–" : names[label(i)];
function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

// --- decisions, stored in the browser: one letter per sample, then the chosen labels as JSON -----------------------

const KEY = "ogc-audit:" + document.body.dataset.key;
const LETTERS = ".aks";
let decided = new Uint8Array(N);
const chosen = new Map();  // sample -> its accepted label, where that is not the suggested one
const undo = [];  // lists of [sample, previous decision, previous label]
let stored = true, unexported = false;

function store() {
  try {
    const letters = Array.from(decided, d => LETTERS[d]).join("").replace(/\.+$/, "");
    localStorage.setItem(KEY, letters + (chosen.size ? JSON.stringify([...chosen]) : ""));
    if (!letters) localStorage.removeItem(KEY);
    stored = true;
  } catch {
    stored = false;
  }
  $("not-stored").hidden = stored;
}

function restore() {
  try {
    const [, letters, labels] = (localStorage.getItem(KEY) || "").match(/^([.aks]*)(.*)$/);
    decided = Uint8Array.from({length: N}, (_, i) => LETTERS.indexOf(letters[i] || "."));
    chosen.clear();
    for (const [i, label] of JSON.parse(labels || "[]")) chosen.set(i, label);
  } catch {
    stored = false;
  }
}

function set(changes) {  // a list of [sample, decision, label]; the label is used only with accept
  for (const [i, decision, label] of changes) {
    decided[i] = decision;
    if (decision === 1 && label !== undefined && label !== data.predicted[i]) chosen.set(i, label); else chosen.delete(i);
  }
  unexported = true;
  store();
}

function decide(changes) {
  undo.push(changes.map(([i]) => [i, decided[i], chosen.get(i)]));
  set(changes);
}

// --- thumbnails --------------------------------------------------------------------------------------------------

function draw(image, i) {
  const jpeg = data.thumbnails[i];
  image.hidden = !jpeg;
  if (jpeg) image.src = "data:image/jpeg;base64," + jpeg;
  return Boolean(jpeg);
}

// Small images show their pixels. The event does not bubble.
document.addEventListener("load", ({target: image}) => image.classList.toggle("small", Math.max(image.naturalWidth, image.naturalHeight) < 64), true);

// --- filters -----------------------------------------------------------------------------------------------------

let list = [], current = -1, haystack = null;

function searchTexts() {
  haystack ??= data.ids.map((id, i) => (id + "\n" + (data.cells ? data.cells[i].join("\n") : "")).toLowerCase());
  return haystack;
}

function filter() {
  const words = $("search").value.trim().toLowerCase();
  const texts = words ? searchTexts() : null;
  const chosen = id => $(id).value === "" ? -1 : Number($(id).value);
  const given = chosen("given"), suggested = chosen("suggested");
  const bound = (id, otherwise) => $(id).value === "" ? otherwise : Math.round($(id).valueAsNumber * 1e4);
  const lowest = bound("lowest", 0), highest = bound("highest", 1e4);
  const issues = $("issues").checked, undecided = $("undecided").checked;
  list = [];
  for (let i = 0; i < N; i++) {
    if (issues && !data.issue[i] || undecided && decided[i]) continue;
    if (given >= 0 && data.given[i] !== given || suggested >= 0 && data.predicted[i] !== suggested) continue;
    if (data.score[i] < lowest || data.score[i] > highest) continue;
    if (texts && !texts[i].includes(words)) continue;
    list.push(i);
  }
  $("clear").hidden = !(words || given >= 0 || suggested >= 0 || lowest > 0 || highest < 1e4 || !issues || undecided);
  $("fold").classList.toggle("on", !$("clear").hidden);
  for (const button of document.querySelectorAll("button[data-given]")) {
    const here = Number(button.dataset.given) === given && Number(button.dataset.suggested) === suggested;
    button.setAttribute("aria-pressed", String(here));
  }
}

function position(i) {  // index in the list of sample i, or of the next one after it
  const found = list.findIndex(each => each >= i);
  return found < 0 ? list.length : found;
}

function nearest(i) {  // i or the nearest sample in the list; -1 if the list is empty
  return list.length ? list[Math.min(position(i), list.length - 1)] : -1;
}

function refilter(keepPlace) {
  const inside = $("gallery").contains(document.activeElement);
  filter();
  if (!keepPlace) current = -1;
  layOut(true);
  if (!keepPlace && $("bar").getBoundingClientRect().top <= 0) scrollToCurrent(true);
  if (inside) focusCurrent();
}

// --- the gallery: only visible cards and the current one are in the page -----------------------------------------

const gallery = $("gallery");
const cards = new Map();  // sample -> its card
let columns = 1, columnWidth = 0, rowHeight = 0, gap = 0;
gallery.className = pictures ? "pictures" : data.cells ? "rows" : "bare";
const narrowest = {pictures: 11.25, rows: 19, bare: 15}[gallery.className];  // of a card, in rem
if (pictures && names.some(name => name.length > 12)) gallery.classList.add("long");
gallery.classList.toggle("two-lines", names.some(name => name.length > 22));

function fillCard(card, i) {
  const one = selector => card.querySelector(selector);
  const drawn = pictures && draw(one("img"), i);
  one(".none").textContent = !pictures || drawn ? "" : i < data.thumbnails.length ? "no image" : "no thumbnail (not among the worst)";
  one(".given").textContent = names[data.given[i]];
  one(".suggested").textContent = suggestion(i);
  one(".truly").hidden = !data.true;
  if (data.true) one(".truly bdi").textContent = names[data.true[i]];
  one(".facts").textContent = `score ${score(i)} · wrong ${percent(data.wrong[i])}`;
  one(".id bdi").textContent = cutMiddle(data.ids[i]);
  one(".id").title = cutMiddle(data.ids[i]);
  const fields = one(".fields");
  fields.textContent = "";
  if (data.cells) for (const c of data.on_card.slice(0, FIELDS_ON_CARD)) fields.append(element("dt", data.fields[c]), fieldOf("dd", i, c));
}

function fieldOf(tag, i, c) {
  const cell = data.cells[i][c], shown = tag === "dd" ? rounded(cell) : cell;  // a card has less room than the details
  const made = element(tag, ""), text = element("span", shown || "\u00a0");
  if (shown !== cell) text.title = cell;
  text.classList.toggle("unusual", data.unusual[i].includes(c));
  made.append(text);
  return made;
}

function updateCard(card, i) {
  const here = i === current, source = chosen.has(i) ? "chosen" : "suggested";
  card.querySelector(".suggested").textContent = suggestion(i);
  card.querySelector(".source").textContent = source;
  card.querySelector(".text").title = `${names[data.given[i]]} → ${suggestion(i)}`;
  card.classList.toggle("current", here);
  card.classList.toggle("decided", decided[i] > 0);
  card.tabIndex = here ? 0 : -1;
  const decision = decided[i] ? ", " + DONE[decided[i]].toLowerCase() : "";
  card.setAttribute("aria-label", `${cutMiddle(data.ids[i], 80)}: given ${names[data.given[i]]}, ${source} ${suggestion(i)}, score ${score(i)}${decision}`);
  updateButtons(card, i, here ? 0 : -1);
}

function updateButtons(root, i, tab) {
  for (const button of root.querySelectorAll("[data-decision]")) {
    button.setAttribute("aria-pressed", String(DECISIONS[decided[i]] === button.dataset.decision));
    button.disabled = button.dataset.decision === "accept" && !hasSuggestion(i);
  }
  for (const button of root.querySelectorAll(".choices button")) button.tabIndex = tab;
}

function makeCard(i) {
  const card = $("card").content.firstElementChild.cloneNode(true);
  card.dataset.sample = i;
  fillCard(card, i);
  return card;
}

function measure() {
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const wide = gallery.clientWidth;
  gap = 0.75 * rem;
  columns = wide < 30 * rem ? 1 : Math.max(1, Math.floor((wide + gap) / (narrowest * rem + gap)));
  columnWidth = (wide - gap * (columns - 1)) / columns;
  const probe = makeCard(0);
  probe.style.cssText = `width: ${columnWidth}px; visibility: hidden`;
  gallery.append(probe);
  rowHeight = Math.ceil(probe.getBoundingClientRect().height) + gap;
  probe.remove();
}

function layOut(rebuild) {  // the whole gallery; rebuild: the list of samples has changed
  if (rebuild) clear();
  const most = Math.floor(TALLEST / (rowHeight || 1)) * columns;
  const rest = list.length - most;
  if (rest > 0) list.length = most;
  current = nearest(current);
  gallery.style.height = Math.ceil(list.length / columns) * rowHeight + "px";
  const none = data.issue.includes(1) ? "No sample matches." : "No label looks wrong. Clear “issues only” to see all samples.";
  $("end").textContent = !list.length ? none : rest > 0 ? `${count(rest)} more: use the filters to see them.` : "";
  showStatus();
  renderVisible();
  if ($("details").open) current < 0 ? $("details").close() : fillDetails();
}

function clear() {
  for (const card of cards.values()) card.remove();
  cards.clear();
}

function renderVisible() {  // add the visible cards to the page and remove the others
  if (!list.length || !rowHeight) return clear();
  const top = -gallery.getBoundingClientRect().top, margin = rowHeight;
  const first = Math.max(0, Math.floor((top - margin) / rowHeight)) * columns;
  const last = Math.min(list.length, Math.ceil(Math.max(0, top + innerHeight + margin) / rowHeight) * columns);
  const wanted = [];
  for (let p = first; p < last; p++) wanted.push(p);
  const here = current < 0 ? -1 : position(current);
  if (here >= 0 && here < first) wanted.unshift(here);
  else if (here >= Math.max(first, last)) wanted.push(here);
  const samples = new Set(wanted.map(p => list[p]));
  for (const [i, card] of cards) if (!samples.has(i)) { card.remove(); cards.delete(i); }
  let next = gallery.firstElementChild;
  for (const p of wanted) {
    const i = list[p];
    let card = cards.get(i);
    if (card) next = card.nextElementSibling;
    else {
      card = makeCard(i);
      cards.set(i, card);
      updateCard(card, i);
      gallery.insertBefore(card, next);
    }
    card.setAttribute("aria-posinset", p + 1);
    card.setAttribute("aria-setsize", list.length);
    card.style.width = columnWidth + "px";
    card.style.transform = `translate(${p % columns * (columnWidth + gap)}px, ${Math.floor(p / columns) * rowHeight}px)`;
  }
}

function scrollToCurrent(toTop) {  // scroll until the current card is visible
  if (current < 0) return;
  const row = Math.floor(position(current) / columns);
  const bar = $("bar").offsetHeight + gap;
  const top = gallery.getBoundingClientRect().top + scrollY + row * rowHeight;
  if (toTop || top < scrollY + bar) scrollTo(0, top - bar);
  else if (top + rowHeight > scrollY + innerHeight) scrollTo(0, top + rowHeight - innerHeight);
}

function focusCurrent() {
  if ($("details").open) return;
  const card = cards.get(current);
  if (card) card.focus({preventScroll: true}); else gallery.focus({preventScroll: true});
}

function goTo(i, focus = true) {
  const before = current;
  current = i;
  scrollToCurrent(false);
  renderVisible();
  for (const each of [before, current]) if (cards.has(each)) updateCard(cards.get(each), each);
  if ($("details").open) fillDetails();
  if (focus) focusCurrent();
}

function step(by) {
  if (!list.length) return;
  const here = position(current);
  goTo(list[Math.max(0, Math.min(list.length - 1, here + by))]);
}

// --- deciding ----------------------------------------------------------------------------------------------------

function showStatus(message) {
  const each = [0, 0, 0, 0];
  for (const d of decided) each[d]++;
  const all = N - each[0];
  const parts = DECISIONS.slice(1).map((name, k) => each[k + 1] ? `${count(each[k + 1])} ${name}` : "").filter(Boolean);
  $("shown").textContent = `${count(list.length)} shown, ${count(all)} decided` + (all && innerWidth > 600 ? ` (${parts.join(", ")})` : "");
  if (message !== undefined) $("message").textContent = message;
  $("export").disabled = !all;
  $("undo").disabled = !undo.length;
}

function afterDecisions(message, back) {  // update the page after decisions; back: the sample to select
  if ($("undecided").checked) {
    filter();
    current = back ?? current;
    layOut(true);
    scrollToCurrent(false);
    renderVisible();
    focusCurrent();
  } else {
    for (const [i, card] of cards) updateCard(card, i);
    if (back === undefined) step(1); else goTo(nearest(back));
  }
  showStatus(message);
}

function isVisible() {
  if ($("details").open) return true;
  const card = cards.get(current)?.getBoundingClientRect();
  return card && card.bottom > Math.max(0, $("bar").getBoundingClientRect().bottom) && card.top < innerHeight;
}

function choose(decision, as) {
  if (current < 0 || list[position(current)] !== current) return;
  if (!isVisible()) {
    goTo(current);
    return showStatus("The selected sample was out of view. Press again to decide.");
  }
  const i = current;
  if (DECISIONS[decision] === "accept" && as === undefined && !hasSuggestion(i)) return showStatus("No other label is suggested here: keep or skip.");
  decide([[i, decision, as]]);
  const what = decision === 1 ? `${names[data.given[i]]} → ${names[label(i)]}` : names[data.given[i]];
  afterDecisions(`${DONE[decision]}: ${what}`);
}

function undoLast() {
  const last = undo.pop();
  if (!last) return showStatus("There is nothing to undo.");
  set(last);
  afterDecisions(last.length === 1 ? `Undone: ${cutMiddle(data.ids[last[0][0]], 60)}` : `Undone: ${count(last.length)} decisions`, last[0][0]);
}

// --- files -------------------------------------------------------------------------------------------------------

const HEADER = ["id", "decision", "given_label", "suggested_label"];
const cell = text => /^$|["\r\n,]|^\s|\s$/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;

function csv() {
  const lines = [HEADER];
  for (let i = 0; i < N; i++) {
    if (decided[i]) lines.push([data.ids[i], DECISIONS[decided[i]], data.classes[data.given[i]], data.classes[label(i)]]);
  }
  return lines.map(line => line.map(cell).join(",") + "\n").join("");
}

// Bytes of a file name that are not valid UTF-8 are U+DC80 to U+DCFF here, as in Python. In files they are bytes again.
const bytes = text => text.split(/([\udc80-\udcff])/u).map((part, k) => k % 2 ? Uint8Array.of(part.charCodeAt(0) & 255) : new TextEncoder().encode(part));
const letters = part => new TextDecoder("windows-1252").decode(part);  // a different character for each byte
const raw = text => /^[\0-\x7f]*$/.test(text) ? text : bytes(text).map(letters).join("");

function exportCsv() {
  if (!decided.some(d => d)) return showStatus("There are no decisions yet.");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(bytes(csv()), {type: "text/csv"}));
  link.download = "decisions.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  unexported = false;
  showStatus("Exported as decisions.csv");
}

function parse(text) {  // a CSV file -> [line number, cells] of each row
  const rows = [], pattern = /(?:"([^"]*(?:""[^"]*)*)"|([^",\r\n]*))(,|\r\n|\r|\n|$)/y;
  for (let line = 1, first = 1, cells = []; pattern.lastIndex < text.length || cells.length;) {
    const found = pattern.exec(text);
    if (!found) throw new Error(`Unclosed or misplaced quote in line ${line}.`);
    cells.push(found[1] === undefined ? found[2] : found[1].replaceAll('""', '"'));
    line += (found[0].match(/\r\n|\r|\n/g) || []).length;  // quoted cells may contain line breaks
    if (found[3] !== ",") {
      rows.push([first, cells]);
      first = line;
      cells = [];
    }
  }
  return rows;
}

function loadCsv(content) {  // names are compared as bytes, because they may not be valid UTF-8
  const text = letters(content), mark = raw("\ufeff");
  const [[, header] = [1, []], ...rows] = parse(text.startsWith(mark) ? text.slice(mark.length) : text);
  const at = HEADER.map(name => header.indexOf(name));
  if (at.includes(-1)) throw new Error(`This is not a decisions file: its first line should be ${HEADER.join(",")}.`);
  const byId = new Map(data.ids.map((id, i) => [raw(id), i])), classes = data.classes.map(raw);
  const changes = [];
  let unmatched = 0, first = 0;
  for (const [line, cells] of rows) {
    if (cells.length === 1 && !cells[0]) continue;  // blank line
    const [id, decision, given, suggested] = at.map(c => cells[c]);
    const i = byId.get(id), d = DECISIONS.indexOf(decision);
    const as = classes.indexOf(suggested);
    const known = d === 1 ? as >= 0 && as !== data.given[i] : as === data.predicted[i];
    if (i !== undefined && d > 0 && given === classes[data.given[i]] && known) changes.push([i, d, as]);
    else if (!unmatched++) first = line;
  }
  const skipped = unmatched === 1 ? `1 skipped that does not match this audit, in line ${first}`
    : `${count(unmatched)} skipped that do not match this audit, the first in line ${first}`;
  if (changes.length) {
    decide(changes);
    afterDecisions("", current);
  }
  showStatus(`${count(changes.length)} decision${changes.length === 1 ? "" : "s"} loaded` + (unmatched ? `; ${skipped}` : ""));
}

// --- sample details ----------------------------------------------------------------------------------------------

function fillDetails() {
  const i = current;
  $("detail-id").textContent = cutMiddle(data.ids[i], 1000);
  $("details").querySelector(".detail").classList.toggle("plain", !draw($("details").querySelector("img"), i));
  const facts = [["given", names[data.given[i]]], ["suggested", hasSuggestion(i) ? `${names[data.predicted[i]]} (${percent(data.probability[i])})` : "–"]];
  if (chosen.has(i)) facts.push(["chosen", names[label(i)]]);
  if (data.true) facts.push(["true", names[data.true[i]]]);
  facts.push(["score", score(i, 4)], ["wrong", percent(data.wrong[i])]);
  if (data.splits) facts.push(["split", data.splits[i]]);
  facts.push(["position", `${count(position(i) + 1)} of ${count(list.length)}`]);
  table($("detail-facts"), facts);
  $("columns").hidden = !data.cells;
  if (data.cells) {
    const unusual = data.unusual[i].length;
    $("columns").querySelector("summary").textContent = `All ${count(data.fields.length)} columns` + (unusual ? `, ${count(unusual)} unusual` : "");
    table($("detail-fields"), data.fields.map((name, c) => [name, fieldOf("td", i, c)]));
  }
  $("label").value = label(i);
  updateButtons($("details"), i, 0);
}

function table(body, rows) {
  body.textContent = "";
  for (const [name, value] of rows) {
    const row = body.insertRow(), head = element("th", name);
    head.scope = "row";
    row.append(head, typeof value === "string" ? element("td", value) : value);
  }
}

function openDetails() {
  if (current < 0 || $("details").open) return;
  fillDetails();
  $("details").showModal();
}

let choosing = false;  // the details were opened to choose a label, and close once it is chosen

function chooseLabel() {
  choosing = !$("details").open;
  openDetails();
  if ($("details").open) $("label").focus();
}

// --- keyboard and mouse ------------------------------------------------------------------------------------------

function toggleFilters(open) {  // show or hide the filters on a narrow screen
  $("filters").classList.toggle("open", open);
  $("fold").setAttribute("aria-expanded", String(open));
}

function search() {
  toggleFilters(true);
  $("search").focus();
  $("search").select();
}

const KEYS = {
  a: () => choose(1), k: () => choose(2), s: () => choose(3), l: chooseLabel, u: undoLast, e: exportCsv,
  n: () => step(1), p: () => step(-1), "/": search, "?": () => $("help").showModal(),
};
const MOVES = {ArrowRight: () => 1, ArrowLeft: () => -1, ArrowDown: () => columns, ArrowUp: () => -columns, Home: () => -N, End: () => N};

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const at = event.target, typing = at.matches("input:not([type=checkbox]), select, textarea");
  if ($("help").open) return;
  if (typing) {
    // Browsers do not submit a form that has several fields and no submit button.
    if (event.key === "Enter" && at.matches("#filters input") || event.key === "Escape" && at === $("search")) {
      event.preventDefault();
      applySearch();
      focusCurrent();
    }
    return;
  }
  if (event.repeat && ("akslue".includes(event.key) || event.key === "Enter" && at.matches("button"))) return event.preventDefault();  // held down
  const inside = gallery.contains(at) || $("details").open;
  const inMatrix = $("matrix")?.contains(at);
  if (KEYS[event.key] && $("letters").checked && !($("details").open && event.key === "/")) KEYS[event.key]();
  else if (inMatrix && event.key.startsWith("Arrow")) moveInMatrix(at, event.key);
  else if (inside && MOVES[event.key] && !($("details").open && /Up|Down|Home|End/.test(event.key))) step(MOVES[event.key]());
  else if (event.key === "Enter" && at.matches(".card")) openDetails();
  else return;
  event.preventDefault();
});

document.addEventListener("click", event => {
  const button = event.target.closest("button"), card = event.target.closest(".card");
  if (card) goTo(Number(card.dataset.sample), !button);
  if (button?.dataset.decision) choose(DECISIONS.indexOf(button.dataset.decision));
  else if (button?.dataset.given) filterByPair(button);
  else if (button?.matches(".another")) chooseLabel();
  else if (button?.matches(".close")) button.closest("dialog").close();
  else if (card && event.target.closest(".picture, .fields, .id")) openDetails();
});

function filterByPair(button) {
  const same = button.getAttribute("aria-pressed") === "true";  // pressed again: clear the filter
  $("given").value = same ? "" : button.dataset.given;
  $("suggested").value = same ? "" : button.dataset.suggested;
  $("issues").checked = true;
  refilter(false);
  if (same) return;
  scrollToCurrent(true);
  focusCurrent();
}

function moveInMatrix(from, key) {  // move between the numbers of the matrix with the arrow keys, skipping empty cells
  const {x, y} = from.getBoundingClientRect();
  const across = key === "ArrowLeft" || key === "ArrowRight", ahead = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
  let best = null, nearest = Infinity;
  for (const button of $("matrix").querySelectorAll("button")) {
    const box = button.getBoundingClientRect();
    const along = ahead * (across ? box.x - x : box.y - y), aside = Math.abs(across ? box.y - y : box.x - x);
    if (along > 1 && aside < 1 && along < nearest) [best, nearest] = [button, along];
  }
  if (!best) return;
  from.tabIndex = -1;
  best.tabIndex = 0;
  best.focus();
}

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("close", () => { choosing = false; renderVisible(); focusCurrent(); });
  dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close(); });
}
$("another").addEventListener("submit", event => {
  event.preventDefault();
  const as = Number($("label").value);
  choose(as === data.given[current] ? 2 : 1, as);
  if (choosing) $("details").close();
});
$("fold").addEventListener("click", () => toggleFilters(!$("filters").matches(".open")));
$("undo").addEventListener("click", undoLast);
$("export").addEventListener("click", exportCsv);
$("load").addEventListener("click", () => $("file").click());
$("ask").addEventListener("click", () => $("help").showModal());
$("before").addEventListener("click", () => step(-1));
$("after").addEventListener("click", () => step(1));
$("file").addEventListener("change", async () => {
  const [file] = $("file").files;
  if (!file) return;
  try {
    loadCsv(await file.arrayBuffer());
  } catch (error) {
    showStatus(error.message);
  }
  $("file").value = "";
});
let waiting = 0;
function applySearch() {
  if (!waiting) return;
  clearTimeout(waiting);
  waiting = 0;
  refilter(false);
}
$("filters").addEventListener("input", event => {
  clearTimeout(waiting);
  waiting = setTimeout(applySearch, 120);
  if (event.target !== $("search")) applySearch();
});
$("filters").addEventListener("reset", () => setTimeout(refilter, 0, false));
addEventListener("storage", event => { if (event.key === KEY) { restore(); refilter(true); } });
addEventListener("beforeunload", event => { if (!stored && unexported) event.preventDefault(); });
let asked = false;
addEventListener("scroll", () => {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; renderVisible(); });
}, {passive: true});
let width = 0;
new ResizeObserver(() => {
  if (gallery.clientWidth === width) return renderVisible();
  width = gallery.clientWidth;
  if (N) measure();
  filter();
  layOut(true);
}).observe(gallery);
addEventListener("resize", renderVisible);

const counts = [...document.querySelectorAll("#matrix button")];
const largest = Math.max(...counts.map(button => Number(button.dataset.count)));
for (const button of counts) button.style.setProperty("--share", Math.sqrt(button.dataset.count / largest).toFixed(3));
if (counts.length) counts[0].tabIndex = 0;
restore();
store();
if (N) measure();
refilter(false);
}
