// A table without a column “text”: a person chooses its columns of text, title and id.
import { byId, counted, made } from "./common.js";

const ROLES = ["text", "title", "id"];
const TITLES = ["title", "subject", "summary", "headline", "name"]; // in any case
const IDS = ["id", "_id"]; // columns that the server takes for ids by itself
const NONE = { name: "", example: "" };
const LONGEST = 60; // characters of an example
let shown = ""; // the files and columns of the form
let chosen = () => {};

const selectOf = (role) => byId(`role-${role}`);

// Shows the columns of some files. `listener` gets the fields of their upload, or null if they are to be left out.
export function showColumns(names, columns, listener) {
  const now = JSON.stringify([names, columns]);
  chosen = listener;
  if (now === shown) return;
  shown = now;
  const one = names.length === 1;
  byId("roles-heading").textContent = one
    ? `${names[0]} has no column “text”`
    : `${counted(names.length, "file")} have no column “text”: ${names.join(", ")}`;
  const id = IDS.find((name) => columns.some((each) => each.name === name)) ?? "";
  const title = columns.find(({ name }) => TITLES.includes(name.toLowerCase()))?.name ?? "";
  const others = columns.filter(({ name }) => name !== title && name !== id);
  const longest = others.reduce((best, each) => (each.example.length > best.example.length ? each : best), others[0] ?? NONE);
  fill("text", columns, longest.name || columns[0].name);
  fill("title", [NONE, ...columns], longest.name && title);
  fill("id", id ? columns : [NONE, ...columns], id);
  exclude();
  const isElsewhere = document.activeElement !== document.body && !byId("upload").contains(document.activeElement);
  byId("roles").hidden = false;
  if (!isElsewhere) selectOf("text").focus();
}

export function hideColumns() {
  shown = "";
  byId("roles").hidden = true;
}

function fill(role, columns, value) {
  const options = columns.map(({ name, example }) => {
    const line = example.replace(/\s+/g, " ").trim();
    const short = line.length > LONGEST ? `${line.slice(0, LONGEST - 1)}…` : line;
    return made("option", name ? [name, short && ` · ${short}`] : "none", { value: name });
  });
  selectOf(role).replaceChildren(...options);
  selectOf(role).value = value;
}

// A column has one role.
function exclude() {
  for (const role of ROLES) {
    const taken = ROLES.filter((each) => each !== role).map((each) => selectOf(each).value);
    for (const option of selectOf(role).options) option.disabled = option.value !== "" && taken.includes(option.value);
  }
}

byId("roles").addEventListener("change", exclude);
byId("roles").addEventListener("submit", (event) => {
  event.preventDefault();
  const named = ROLES.filter((role) => selectOf(role).value);
  chosen(named.map((role) => `${role}=${selectOf(role).value}`));
});
byId("leave-out").addEventListener("click", () => chosen(null));
