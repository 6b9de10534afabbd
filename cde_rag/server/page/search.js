// The search: hits by the default ranking, filters by fields that exist, and a comparison of rankings.
import { byId, call, collectionPath, counted, made, number, openPassage, problem, selected, titleOf } from "./common.js";
import * as judged from "./judged.js";
import { fieldsOf, marked, namePaths, shownNames, snippet, where } from "./text.js";

const COLUMNS = {
  hybrid: ["Default", "Meaning and words together: the list without comparison"],
  own: ["Meaning, with context", "Passages are read as parts of this collection and of their documents"],
  null: ["Meaning, without context", "The same passages, each read by itself; ranks the best of the other columns"],
  bm25: ["Words only", "Passages that have the words of the query, rare words first"],
};
const PAGE = 10;
const FEW = 4; // values that are offered one by one even if each is that of one passage
const MOST = 50; // hits
const FILES = ["source", "table.file"]; // fields whose values name files
let turn = 0; // of the newest search: answers of earlier ones are dropped
let shown = null; // the search that is shown: { name, query, k }
let chosen = new Map(); // field → its condition in the filter

function say(text, wrong = "") {
  byId("status").textContent = text;
  problem(wrong);
}

// Clears the view for another collection, and shows what that holds.
export async function fresh() {
  turn += 1;
  shown = null;
  chosen = new Map();
  byId("query").value = "";
  byId("facets").replaceChildren();
  clear();
  judged.read();
  count();
  await refresh();
}

function clear() {
  for (const id of ["hits", "columns", "examples"]) byId(id).replaceChildren();
  for (const id of ["more", "start", "results-bar", "columns"]) byId(id).hidden = true;
  say("");
}

// Reads anew what is in the collection: for the page before a search, and for the filters.
export async function refresh() {
  const name = selected();
  const written = byId("where")?.value ?? "";
  byId("filters").hidden = true;
  if (!name) return;
  const found = await call(`${collectionPath(name)}/overview`);
  if (name !== selected()) return;
  const least = found.complete ? "" : "more than ";
  byId("holds").textContent = found.passages
    ? `${name} holds ${counted(found.passages, "passage")} of ${least}${counted(found.documents, "document")}.`
    : `${name} is empty. Add files in the Library.`;
  byId("try").hidden = !found.examples.length;
  byId("examples").replaceChildren(
    ...found.examples.map((example) => {
      const button = made("button", example, { type: "button" });
      button.addEventListener("click", () => ask(example));
      return made("li", button);
    }),
  );
  byId("start").hidden = !byId("results-bar").hidden;
  byId("filters").hidden = !found.fields.length;
  byId("filters").open = byId("filters").open || matchMedia("(min-width: 60rem)").matches;
  byId("facets").replaceChildren(...found.fields.map(facetOf), jsonFilter(written));
  filtered();
}

export function ask(query, compare = byId("compare").checked) {
  byId("query").value = query;
  byId("compare").checked = compare;
  byId("search").requestSubmit();
}

// A field of the metadata: its values where they are few and passages share them, bounds of numbers, else a part of its text.
function facetOf(field) {
  const set = made("fieldset");
  set.append(made("legend", field.name));
  const isShared = field.values && (field.values.length <= FEW || field.values.some(({ passages }) => passages > 1));
  if (field.values && (isShared || chosen.get(field.name)?.in)) {
    const files = FILES.includes(field.name) ? shownNames(field.values.map(({ value }) => String(value))) : new Map();
    const few = field.values.map(({ value, passages }) => {
      const label = made("label");
      const box = made("input", undefined, { type: "checkbox", checked: chosen.get(field.name)?.in?.includes(value) });
      box.addEventListener("change", () => {
        const others = (chosen.get(field.name)?.in ?? []).filter((one) => one !== value);
        const values = box.checked ? [...others, value] : others;
        choose(field.name, values.length ? { in: values } : null);
      });
      label.append(box, " ", made("span", files.get(value) ?? String(value)), " ", made("span", String(passages), { className: "number" }));
      return label;
    });
    set.append(...few);
  } else if (field.least !== null) {
    const bounds = [
      ["gte", "from", field.least],
      ["lte", "to", field.most],
    ].map(([operator, word, bound]) => {
      const label = made("label", `${word} `);
      const input = made("input", undefined, { type: "number", step: "any", placeholder: String(bound) });
      input.value = chosen.get(field.name)?.[operator] ?? "";
      input.addEventListener("change", () => {
        const condition = { ...chosen.get(field.name) };
        if (input.value === "") delete condition[operator];
        else condition[operator] = Number(input.value);
        choose(field.name, Object.keys(condition).length ? condition : null);
      });
      label.append(input);
      return label;
    });
    set.append(...bounds);
  } else {
    const label = made("label", "contains ");
    const input = made("input", undefined, { type: "text", autocomplete: "off" });
    input.value = chosen.get(field.name)?.contains ?? "";
    input.addEventListener("change", () => choose(field.name, input.value ? { contains: input.value } : null));
    label.append(input);
    set.append(label);
  }
  return set;
}

function jsonFilter(written) {
  const details = made("details");
  const label = made("label", "Filter as JSON", { htmlFor: "where" });
  const placeholder = '{"year": {"gte": 2020}}';
  const text = made("textarea", undefined, { id: "where", rows: 2, spellcheck: false, placeholder, value: written });
  text.addEventListener("change", () => {
    filtered();
    again();
  });
  details.open = Boolean(written.trim());
  details.append(made("summary", "As JSON"), label, text);
  return details;
}

function choose(field, condition) {
  if (condition) chosen.set(field, condition);
  else chosen.delete(field);
  filtered();
  again();
}

function filtered() {
  const size = chosen.size + (byId("where")?.value.trim() ? 1 : 0);
  byId("filter-count").textContent = size ? ` (${size})` : "";
  byId("unfiltered").hidden = !size;
}

// The filter of the search: the chosen fields, and what is written as JSON.
function filter() {
  const fields = chosen.size ? Object.fromEntries(chosen) : null;
  const written = byId("where")?.value.trim();
  if (!written) return fields;
  let parsed;
  try {
    parsed = JSON.parse(written);
  } catch (error) {
    throw new Error(`The filter is no JSON: ${error.message}`);
  }
  return fields ? { and: [fields, parsed] } : parsed;
}

// Searches again, if anything is searched; else the address alone follows the filters.
const again = () => (shown ? search(shown.query, PAGE) : keepAddress(""));

// The page's address has collection, query, ranking and filters, so that it can be kept and sent.
function keepAddress(query) {
  const address = new URLSearchParams({ collection: selected() });
  const written = byId("where")?.value.trim();
  if (query) address.set("q", query);
  if (query && byId("compare").checked) address.set("compare", "1");
  if (chosen.size) address.set("filters", JSON.stringify(Object.fromEntries(chosen)));
  if (written) address.set("where", written);
  history.replaceState(null, "", `?${address}${location.hash}`);
}

// Takes the filters of an address; what is none is left out.
export async function restore(asked) {
  const named = Object.entries(parsedFilters(asked.get("filters"))).filter(([, condition]) => isCondition(condition));
  chosen = new Map([...named, ...chosen]); // what was chosen while the page was loaded comes on top
  const written = asked.get("where") ?? "";
  if (written && byId("where")) {
    byId("where").value = written;
    byId("where").closest("details").open = true;
  }
  if (chosen.size) await refresh();
  else if (written) filtered();
}

function parsedFilters(text) {
  try {
    return JSON.parse(text ?? "{}") ?? {};
  } catch {
    return {};
  }
}

const isCondition = (condition) =>
  condition !== null &&
  typeof condition === "object" &&
  Object.entries(condition).every(([operator, value]) => {
    if (operator === "in") return Array.isArray(value);
    return ["gte", "lte"].includes(operator) ? typeof value === "number" : operator === "contains";
  });

async function search(query, k) {
  const mine = ++turn;
  const name = selected();
  const compare = byId("compare").checked;
  byId("below").classList.toggle("comparing", compare);
  byId("start").hidden = true;
  byId("results-bar").hidden = false;
  say("Searching …");
  byId("found").setAttribute("aria-busy", "true");
  try {
    const body = { query, k, where: filter() };
    keepAddress(query);
    const path = `${collectionPath(name)}/${compare ? "compare" : "search"}`;
    const found = await call(path, compare ? body : { ...body, matches: true });
    if (mine !== turn) return;
    shown = { name, query, k };
    if (compare) showColumns(found);
    else showHits(found);
  } catch (error) {
    if (mine === turn) {
      clear();
      shown = { name, query, k };
      byId("results-bar").hidden = false;
      say("", error.message);
    }
  } finally {
    if (mine === turn) byId("found").removeAttribute("aria-busy");
  }
}

function showHits({ hits, warnings, pending }) {
  byId("columns").hidden = true;
  byId("columns").replaceChildren();
  namePaths(hits);
  byId("hits").replaceChildren(...hits.map((hit) => hitOf(hit)));
  byId("more").hidden = hits.length < shown.k || shown.k >= MOST;
  const waits = !pending
    ? ""
    : pending === 1
      ? " 1 passage waits for its vector, and is found by words."
      : ` ${number(pending)} passages wait for their vectors, and are found by words.`;
  const best = hits.length < shown.k ? counted(hits.length, "hit") : `The ${counted(hits.length, "best hit")}`;
  const none = ["No passage matches.", ...warnings, chosen.size ? "Clear a filter, or use other words." : ""].join(" ");
  say(`${hits.length ? `${best}.` : none.trim()}${waits}`);
}

function showColumns({ columns, warnings }) {
  byId("hits").replaceChildren();
  byId("more").hidden = true;
  byId("columns").hidden = false;
  namePaths(columns.flatMap((one) => one.hits ?? []));
  const named = new Map(columns.map((one) => [one.name, one]));
  const places = new Map((named.get("hybrid").hits ?? []).map((hit, place) => [hit.id, place + 1]));
  byId("columns").replaceChildren(...Object.keys(COLUMNS).map((name) => columnOf(named.get(name), places)));
  const ids = new Set(columns.flatMap((one) => (one.hits ?? []).map((hit) => hit.id)));
  say(ids.size ? `${counted(ids.size, "different hit")} in these rankings.` : ["No passage matches.", ...warnings].join(" "));
}

function columnOf(column, places) {
  const [title, about] = COLUMNS[column.name];
  const section = made("section", undefined, { id: `column-${column.name}` });
  const heading = made("h2", title, { id: `heading-${column.name}`, title: column.name === "bm25" ? "BM25" : "" });
  section.setAttribute("aria-labelledby", heading.id);
  section.append(heading, made("p", column.missing || about, { className: "note" }));
  const list = made("ol");
  list.append(
    ...(column.hits ?? []).map((hit, place) => {
      const moved = column.name === "hybrid" ? "" : movedFrom(places.get(hit.id), place + 1);
      return hitOf(hit, `${place + 1}. score ${hit.score.toFixed(3)}${moved}`);
    }),
  );
  section.append(list);
  return section;
}

function movedFrom(before, place) {
  if (before === undefined) return " · not in the default";
  if (before === place) return " · as in the default";
  return before > place ? ` · ↑ ${before - place}` : ` · ↓ ${place - before}`;
}

function hitOf(hit, facts) {
  const { name, query } = shown;
  const item = made("li", undefined, { className: "hit" });
  item.dataset.id = hit.id;
  const open = made("button", marked(titleOf(hit), hit.matches), { type: "button", className: "open" });
  open.addEventListener("click", () => openPassage(name, hit));
  const foot = made("p", undefined, { className: "facts" });
  if (facts) foot.append(made("span", facts));
  const marks = made("span", undefined, { className: "marks", title: "Marks tune the ranking, in the Library" });
  for (const value of ["right", "wrong"]) {
    const button = made("button", value, { type: "button", className: value });
    button.setAttribute("aria-pressed", String(judged.markOf(query, hit.id) === value));
    button.setAttribute("aria-label", `Mark as ${value}: ${titleOf(hit)}`);
    button.addEventListener("click", () => judge(query, hit.id, value));
    marks.append(button);
  }
  foot.append(marks);
  const heading = made(facts ? "h3" : "h2", open);
  item.append(heading, made("p", where(hit), { className: "path" }));
  const fields = fieldsOf(hit).join(" · ");
  if (fields) item.append(made("p", fields, { className: "path fields", title: fields }));
  item.append(made("p", snippet(hit), { className: "text" }), foot);
  for (const kind of ["pointerenter", "focusin"]) item.addEventListener(kind, () => highlight(facts ? hit.id : null));
  for (const kind of ["pointerleave", "focusout"]) item.addEventListener(kind, () => highlight(null));
  return item;
}

// The same passage in the other columns.
function highlight(id) {
  for (const item of document.querySelectorAll("li.hit")) item.classList.toggle("same", item.dataset.id === id);
}

function judge(query, id, value) {
  judged.mark(query, id, value);
  for (const item of document.querySelectorAll("li.hit")) {
    if (item.dataset.id !== id) continue;
    for (const each of ["right", "wrong"]) {
      item.querySelector(`.${each}`).setAttribute("aria-pressed", String(judged.markOf(query, id) === each));
    }
  }
  count();
}

// The number of judged questions, below the hits.
export function count() {
  const some = judged.judgments().length;
  byId("count").textContent = judged.progress();
  byId("judged").hidden = !some;
}

// Arrows move between the query and the hits; Escape returns to the query.
function move(event) {
  const opens = [...byId("found").querySelectorAll(".open, #examples button")].filter((each) => each.offsetParent);
  const place = opens.indexOf(document.activeElement);
  if (event.key === "Escape" && place >= 0) byId("query").focus();
  else if (event.key === "ArrowDown" && (place >= 0 || event.target === byId("query"))) opens[place + 1]?.focus();
  else if (event.key === "ArrowUp" && place >= 0) (opens[place - 1] ?? byId("query")).focus();
  else return;
  event.preventDefault();
}

byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  if (byId("query").value.trim()) search(byId("query").value, PAGE);
});
byId("more").addEventListener("click", async () => {
  const before = byId("hits").children.length;
  await search(shown.query, Math.min(MOST, shown.k + PAGE));
  byId("hits").children[before]?.querySelector(".open").focus();
});
byId("compare").addEventListener("change", again);
byId("unfiltered").addEventListener("click", async () => {
  chosen = new Map();
  byId("where").value = "";
  await refresh();
  again();
});
byId("facets").addEventListener("submit", (event) => event.preventDefault());
byId("view-search").addEventListener("keydown", move);
