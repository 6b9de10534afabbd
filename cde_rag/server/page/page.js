"use strict";
// Texts of documents are set as text, never as HTML.
const byId = (id) => document.getElementById(id);
const COLUMNS = {
  own: ["Own context", "by vectors, as the collection is stored"],
  null: ["Null context", "the other columns' candidates, embedded without a corpus"],
  words: ["BM25", "by words alone"],
  hybrid: ["Hybrid", "vectors and words together; the default"],
};
let turn = 0; // of the newest search: answers of earlier ones are dropped
let known = [];
const judged = new Map(); // query → ids that are right

function made(tag, text, properties = {}) {
  const element = Object.assign(document.createElement(tag), properties);
  if (text !== undefined) element.textContent = text;
  return element;
}

async function call(path, body) {
  const headers = { "content-type": "application/json" };
  if (byId("key").value) headers.authorization = `Bearer ${byId("key").value}`;
  const options = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
  const response = await fetch(path, options);
  const answer = await response.json();
  if (response.status === 401) byId("access").hidden = false;
  if (!response.ok) throw new Error(answer.error.message);
  return answer;
}

function say(text, problem = "") {
  byId("status").textContent = text;
  byId("problem").textContent = problem;
  byId("problem").hidden = !problem;
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
  say(known.length ? "" : "This server has no collection to search.");
  describe();
}

// A page's address names its collection and query, so that it can be kept and sent.
async function openPage() {
  const asked = new URLSearchParams(location.search);
  await start();
  if (known.some((each) => each.name === asked.get("collection"))) byId("collection").value = asked.get("collection");
  describe();
  if (asked.get("q")) {
    byId("query").value = asked.get("q");
    byId("query").form.requestSubmit();
  }
}

function describe() {
  const each = known.find((one) => one.name === byId("collection").value);
  byId("about").textContent = each
    ? `${each.documents.toLocaleString("en")} documents · ${each.model} · context of ${each.context_size} documents · ` +
      `fingerprint ${each.fingerprint.slice(0, 16)} · generation ${each.generation}`
    : "";
}

async function search(event) {
  event.preventDefault();
  const query = byId("query").value;
  const number = ++turn;
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
    history.replaceState(null, "", `?${new URLSearchParams({ collection: name, q: query })}`);
    const found = await call(`v1/collections/${encodeURIComponent(name)}/compare`, { query, k, where });
    if (number === turn) show(found.columns, query, name);
  } catch (error) {
    if (number === turn) {
      byId("columns").replaceChildren();
      byId("jump").hidden = true;
      say("", error.message);
    }
  } finally {
    if (number === turn) byId("columns").removeAttribute("aria-busy");
  }
}

function show(columns, query, name) {
  const own = new Map((columns.find((one) => one.name === "own").hits || []).map((hit, place) => [hit.id, place + 1]));
  byId("columns").replaceChildren(...columns.map((one) => columnOf(one, own, query, name)));
  byId("jump").replaceChildren(
    ...columns.map((one) => made("a", COLUMNS[one.name][0], { href: `#column-${one.name}` })),
  );
  const ids = new Set(columns.flatMap((one) => (one.hits || []).map((hit) => hit.id)));
  byId("jump").hidden = !ids.size;
  say(ids.size ? `${ids.size} different passages in ${columns.length} columns.` : "No passage matches.");
}

function columnOf(column, own, query, name) {
  const [title, about] = COLUMNS[column.name];
  const section = made("section", undefined, { id: `column-${column.name}` });
  const heading = made("h2", title, { id: `heading-${column.name}` });
  section.setAttribute("aria-labelledby", heading.id);
  section.append(heading, made("p", column.missing || about));
  const list = made("ol");
  list.append(...(column.hits || []).map((hit, place) => hitOf(hit, place + 1, column.name, own, query, name)));
  section.append(list);
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
  const right = made("button", "right", { type: "button", className: "right" });
  const ids = judged.get(query);
  right.setAttribute("aria-pressed", String(Boolean(ids && ids.has(hit.id))));
  right.setAttribute("aria-label", `Mark ${title} as right for this query`);
  right.addEventListener("click", () => judge(query, hit.id));
  facts.append(right);
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

function judge(query, id) {
  const ids = judged.get(query) || new Set();
  if (!ids.delete(id)) ids.add(id);
  judged.set(query, ids);
  for (const item of document.querySelectorAll("li[data-id]")) {
    if (item.dataset.id === id) item.querySelector(".right").setAttribute("aria-pressed", String(ids.has(id)));
  }
  const queries = [...judged.values()].filter((some) => some.size).length;
  byId("count").textContent = `${queries} ${queries === 1 ? "query" : "queries"} with passages marked right.`;
  byId("judged").hidden = !queries;
}

function save() {
  const lines = [...judged].filter(([, ids]) => ids.size).map(([query, ids]) => JSON.stringify({ query, ids: [...ids] }));
  const url = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "application/jsonl" }));
  made("a", undefined, { href: url, download: "canary.jsonl" }).click();
  URL.revokeObjectURL(url);
}

async function openPassage(name, id, title) {
  byId("passage-title").textContent = title;
  byId("passages").replaceChildren(made("p", "Loading …"));
  byId("passage").showModal();
  try {
    const path = `v1/collections/${encodeURIComponent(name)}/neighbours?id=${encodeURIComponent(id)}&around=2`;
    const records = (await call(path)).records;
    byId("passages").replaceChildren(
      ...records.map((record) => {
        const article = made("article", undefined, { className: record.id === id ? "found" : "" });
        article.append(made("h3", record.id === id ? `${record.id} (this hit)` : record.id), record.text);
        return article;
      }),
    );
  } catch (error) {
    byId("passages").replaceChildren(made("p", error.message));
  }
}

byId("search").addEventListener("submit", search);
byId("collection").addEventListener("change", describe);
byId("close").addEventListener("click", () => byId("passage").close());
byId("save").addEventListener("click", save);
byId("key").addEventListener("change", start);
openPage();
