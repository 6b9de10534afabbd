// The page: its views, the chosen collection, and the keys that work everywhere.
import * as chat from "./chat.js";
import { byId, call, made, openNamed, problem, selected, showProblem, widen } from "./common.js";
import * as library from "./library.js";
import * as search from "./search.js";

const VIEWS = ["search", "chat", "library"];
let known = [];

async function start() {
  try {
    known = (await call("v1/collections")).data;
  } catch (error) {
    problem(error.message);
    return;
  }
  const before = selected();
  byId("collection").replaceChildren(...known.map((each) => made("option", each.name, { value: each.name })));
  if (known.some((each) => each.name === before)) byId("collection").value = before;
  if (known.length) return;
  problem("This server has no collection to search.");
  library.close();
}

// A page's address names its collection, query, filters and view.
async function openPage() {
  const asked = new URLSearchParams(location.search);
  showView();
  await start();
  if (known.some((each) => each.name === asked.get("collection"))) byId("collection").value = asked.get("collection");
  if (!known.length) {
    await openView();
    return;
  }
  const typed = byId("query").value; // before the collections were known
  const isAsked = !byId("results-bar").hidden;
  const ready = choose();
  byId("query").value = typed;
  await ready;
  try {
    await search.restore(asked);
    if (asked.get("passage")) await openNamed(selected(), asked.get("passage"));
  } catch (error) {
    problem(error.message);
  }
  if (typed && isAsked) search.ask(typed);
  else if (asked.get("q") && !typed) search.ask(asked.get("q"), asked.get("compare") === "1");
}

function showView() {
  const named = location.hash.slice(1);
  const view = VIEWS.includes(named) ? named : "search";
  document.title = `cde-rag: ${view}`;
  for (const each of VIEWS) byId(`view-${each}`).hidden = each !== view;
  showProblem();
  for (const link of byId("views").children) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  return view;
}

async function openView() {
  const view = showView();
  try {
    if (view === "chat") {
      byId("question").focus({ preventScroll: true });
      await chat.describe();
    }
    if (view === "library") await library.describe();
  } catch (error) {
    problem(error.message);
  }
}

// Shows the collection that is selected.
async function choose() {
  problem();
  chat.fresh();
  library.fresh();
  byId("unfinished").hidden = !known.find((each) => each.name === selected())?.unfinished;
  try {
    await search.fresh();
  } catch (error) {
    problem(error.message);
  }
  await openView();
}

const writes = (element) => element.closest("input, textarea, select, [contenteditable]") !== null;

byId("collection").addEventListener("change", () => {
  history.replaceState(null, "", `?${new URLSearchParams({ collection: selected() })}${location.hash}`);
  choose();
});
byId("close").addEventListener("click", () => byId("passage").close());
byId("wider").addEventListener("click", widen);
byId("key").addEventListener("change", () => {
  problem();
  openPage();
});
window.addEventListener("hashchange", () => {
  problem();
  openView();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || writes(event.target)) return;
  if (document.querySelector("dialog[open]")) return;
  event.preventDefault();
  if (byId("view-search").hidden) location.hash = "search";
  byId("view-search").hidden = false;
  byId("query").focus();
  byId("query").select();
});
library.onChange(search.refresh);
openPage();
