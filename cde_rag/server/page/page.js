// The page: its views, the chosen collection, and the search.
import * as chat from "./chat.js";
import { byId, call, collectionPath, download, made, openPassage, problem, send } from "./common.js";
import * as manage from "./manage.js";

const COLUMNS = {
  own: ["Own context", "by vectors, as the collection is stored"],
  null: ["Null context", "the other columns' candidates, embedded without a corpus"],
  bm25: ["BM25", "by terms alone"],
  hybrid: ["Hybrid", "vectors and BM25 together; the default"],
};
const VIEWS = { search: "search", chat: "chat", manage: "collection" };
let turn = 0; // of the newest search: answers of earlier ones are dropped
let known = [];
const judged = new Map(); // query → id → "right" or "wrong"

function say(text, wrong = "") {
  byId("status").textContent = text;
  problem(wrong);
}

async function start() {
  try {
    known = (await call("v1/collections")).data;
  } catch (error) {
    say("", error.message);
    return;
  }
  const selected = byId("collection").value;
  byId("collection").replaceChildren(...known.map((each) => made("option", each.name, { value: each.name })));
  if (known.some((each) => each.name === selected)) byId("collection").value = selected;
  // the reason why a job failed stays: this runs after it
  byId("status").textContent = known.length ? "" : "This server has no collection to search.";
  describe();
}

// A page's address names its collection, query and view, so that it can be kept and sent.
async function openPage() {
  const asked = new URLSearchParams(location.search);
  await start();
  if (known.some((each) => each.name === asked.get("collection"))) byId("collection").value = asked.get("collection");
  describe();
  if (asked.get("q")) {
    byId("query").value = asked.get("q");
    byId("search").requestSubmit();
  }
  await openView();
}

async function openView() {
  const named = location.hash.slice(1);
  if (named && !Object.hasOwn(VIEWS, named)) return; // a column
  const view = named || "search";
  document.title = `cde-rag: ${VIEWS[view]}`;
  for (const each of Object.keys(VIEWS)) byId(`view-${each}`).hidden = each !== view;
  for (const link of byId("views").children) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    if (view === "chat") await chat.describe();
    if (view === "manage") await manage.describe();
  } catch (error) {
    problem(error.message);
  }
}

function describe() {
  const each = known.find((one) => one.name === byId("collection").value);
  byId("about").textContent = each
    ? `${each.documents.toLocaleString("en")} passages · ${each.model} · context of ${each.context_size} passages · ` +
      `fingerprint ${each.fingerprint.slice(0, 16)} · generation ${each.generation}`
    : "";
}

async function search(event) {
  event.preventDefault();
  const query = byId("query").value;
  const mine = ++turn;
  let where = null;
  try {
    where = byId("where").value.trim() ? JSON.parse(byId("where").value) : null;
  } catch (error) {
    say("", `The filter is no JSON: ${error.message}`);
    return;
  }
  say("Searching …");
  byId("columns").setAttribute("aria-busy", "true");
  try {
    if (!known.length) await start();
    const name = byId("collection").value;
    const k = Number(byId("k").value) || 10;
    history.replaceState(null, "", `?${new URLSearchParams({ collection: name, q: query })}${location.hash}`);
    const found = await call(`v1/collections/${encodeURIComponent(name)}/compare`, { query, k, where });
    if (mine === turn) show(found, query, name);
  } catch (error) {
    if (mine === turn) {
      byId("columns").replaceChildren();
      byId("jump").hidden = true;
      say("", error.message);
    }
  } finally {
    if (mine === turn) byId("columns").removeAttribute("aria-busy");
  }
}

function show({ columns, warnings }, query, name) {
  const own = new Map((columns.find((one) => one.name === "own").hits || []).map((hit, place) => [hit.id, place + 1]));
  byId("columns").replaceChildren(...columns.map((one) => columnOf(one, own, query, name)));
  byId("jump").replaceChildren(
    ...columns.map((one) => made("a", COLUMNS[one.name][0], { href: `#column-${one.name}` })),
  );
  const ids = new Set(columns.flatMap((one) => (one.hits || []).map((hit) => hit.id)));
  byId("jump").hidden = !ids.size;
  say(ids.size ? `${ids.size} different passages in ${columns.length} columns.` : ["No passage matches.", ...warnings].join(" "));
}

function columnOf(column, own, query, name) {
  const [title, about] = COLUMNS[column.name];
  const section = made("section", undefined, { id: `column-${column.name}` });
  const heading = made("h2", title, { id: `heading-${column.name}` });
  section.setAttribute("aria-labelledby", heading.id);
  section.append(heading, made("p", column.missing || about));
  const hits = column.hits || [];
  if (hits.length) {
    const list = made("ol");
    list.append(...hits.map((hit, place) => hitOf(hit, place + 1, column.name, own, query, name)));
    section.append(list);
  }
  return section;
}

function hitOf(hit, place, column, own, query, name) {
  const item = made("li");
  item.dataset.id = hit.id;
  const title = [hit.title, hit.section].filter(Boolean).join(" · ") || hit.id;
  const open = made("button", `${place}. ${title}`, { type: "button", className: "open" });
  open.addEventListener("click", () => openPassage(name, hit.id, title));
  const facts = made("p", undefined, { className: "facts" });
  facts.append(made("span", `score ${hit.score.toFixed(3)}`));
  if (column !== "own") facts.append(made("span", moved(own.get(hit.id), place)));
  const marks = made("span", undefined, { className: "marks" });
  for (const mark of ["right", "wrong"]) {
    const button = made("button", mark, { type: "button", className: mark });
    button.setAttribute("aria-pressed", String(judged.get(query)?.get(hit.id) === mark));
    button.setAttribute("aria-label", `Mark as ${mark}: ${title}`);
    button.addEventListener("click", () => judge(query, hit.id, mark));
    marks.append(button);
  }
  facts.append(marks);
  item.append(open, made("p", hit.text, { className: "text" }), facts);
  for (const kind of ["pointerenter", "focusin"]) item.addEventListener(kind, () => highlight(hit.id));
  for (const kind of ["pointerleave", "focusout"]) item.addEventListener(kind, () => highlight(null));
  return item;
}

function moved(before, place) {
  if (before === undefined) return "not in own";
  if (before === place) return "as in own";
  return before > place ? `↑ ${before - place} from own` : `↓ ${place - before} from own`;
}

function highlight(id) {
  for (const item of document.querySelectorAll("li[data-id]")) item.classList.toggle("same", item.dataset.id === id);
}

function judge(query, id, mark) {
  const marks = judged.get(query) ?? new Map();
  if (marks.get(id) === mark) marks.delete(id);
  else marks.set(id, mark);
  judged.set(query, marks);
  for (const item of document.querySelectorAll("li[data-id]")) {
    if (item.dataset.id !== id) continue;
    for (const each of ["right", "wrong"]) {
      item.querySelector(`.${each}`).setAttribute("aria-pressed", String(marks.get(id) === each));
    }
  }
  const queries = judgments().length;
  byId("count").textContent = `${queries} ${queries === 1 ? "query" : "queries"} with judged passages.`;
  byId("judged").hidden = !queries;
}

function judgments() {
  const withMark = (marks, mark) => [...marks].filter(([, each]) => each === mark).map(([id]) => id);
  return [...judged]
    .map(([query, marks]) => ({ query, right: withMark(marks, "right"), wrong: withMark(marks, "wrong") }))
    .filter((one) => one.right.length || one.wrong.length);
}

function save() {
  const lines = judgments()
    .filter((one) => one.right.length)
    .map(({ query, right }) => ({ question: query, answers: right.map((id) => ({ id })) }));
  if (!lines.length) {
    problem("The file holds questions with passages that are right. Mark one first.");
    return;
  }
  const text = lines.map((line) => `${JSON.stringify(line)}\n`).join("");
  download(new Blob([text], { type: "application/jsonl" }), "judged.jsonl");
}

async function saveSet() {
  problem();
  try {
    const response = await send(`${collectionPath()}/judgments`, { body: { judgments: judgments() } });
    download(await response.blob(), `${byId("collection").value}-judged.zip`);
  } catch (error) {
    problem(error.message);
  }
}

async function choose() {
  describe();
  judged.clear(); // ids are the other collection's
  byId("judged").hidden = true;
  byId("columns").replaceChildren();
  byId("jump").hidden = true;
  say("");
  chat.fresh();
  manage.fresh();
  await openView();
}

byId("search").addEventListener("submit", search);
byId("collection").addEventListener("change", choose);
byId("close").addEventListener("click", () => byId("passage").close());
byId("save").addEventListener("click", save);
byId("save-set").addEventListener("click", saveSet);
byId("key").addEventListener("change", async () => {
  problem();
  await start();
  await openView();
});
window.addEventListener("hashchange", () => {
  problem();
  openView();
});
manage.onChange(start);
openPage();
