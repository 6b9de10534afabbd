// Shared by the views: elements, requests, and the passage that is open. Texts are set as text, never as HTML.
import { fieldsOf, isMarkdownFile, rendered, reopened, where } from "./text.js";

export const byId = (id) => document.getElementById(id);
export const selected = () => byId("collection").value;
export const collectionPath = (name = selected()) => `v1/collections/${encodeURIComponent(name)}`;
export const number = (value) => value.toLocaleString("en");
export const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

export function made(tag, text, properties = {}) {
  const element = Object.assign(document.createElement(tag), properties);
  if (text !== undefined) element.append(...[text].flat());
  return element;
}

// A sentence of the server as nodes: an option of a command, with its value, is code that no line's end cuts.
export const spoken = (text) =>
  text
    .split(/(--[a-z][\w-]*(?: [A-Z]+\b)?)/)
    .map((part, place) => (place % 2 ? made("code", part, { className: "option" }) : part));

// Says what went wrong, in all views or in one; an empty text clears what is seen.
export function problem(text = "", view = "") {
  const place = byId("problem");
  if (!text && place.hidden) return;
  place.replaceChildren(...spoken(text));
  place.dataset.view = view;
  showProblem();
}

export function showProblem() {
  const { textContent, dataset } = byId("problem");
  byId("problem").hidden = !textContent || Boolean(dataset.view && byId(`view-${dataset.view}`).hidden);
}

// A request whose refusal is an error with the server's sentence.
export async function send(path, { body, raw, method, signal } = {}) {
  const headers = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (byId("key").value) headers.authorization = `Bearer ${byId("key").value}`;
  const content = raw ?? (body === undefined ? undefined : JSON.stringify(body));
  const options = { method: method ?? (content === undefined ? "GET" : "POST"), headers, body: content, signal };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it running?");
  }
  if (response.ok) return response;
  if (response.status === 401) byId("access").hidden = false;
  const error = new Error(`The server answered ${response.status}.`);
  try {
    const { message, code } = (await response.json()).error;
    Object.assign(error, { message, code });
  } catch {
    // the answer is another program's, such as a proxy's
  }
  throw error;
}

export const call = async (path, body, options = {}) => (await send(path, { body, ...options })).json();

export function download(content, name) {
  const url = URL.createObjectURL(content);
  made("a", undefined, { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}

// A button that copies a text, which is made when it is pressed.
export function copier(label, text) {
  const button = made("button", label, { type: "button", className: "copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "This browser does not let the page copy";
    }
  });
  return button;
}

const AROUND = [2, 10, 50]; // neighbours on each side, one step after the other
let opened = null;

// Opens a passage between its neighbours, with the words of the query marked.
export function openPassage(name, hit) {
  opened = { name, hit, step: 0 };
  byId("passage-title").textContent = titleOf(hit);
  byId("passage-path").textContent = where(hit);
  byId("passage-fields").textContent = fieldsOf(hit).join(" · ");
  byId("passages").replaceChildren(made("p", "Loading …"));
  byId("wider").hidden = true;
  const address = new URLSearchParams({ collection: name, passage: hit.id });
  const link = made("a", "Link to this passage", { href: `?${address}` });
  byId("passage-actions").replaceChildren(copier("Copy text", () => hit.text), link);
  byId("passage").showModal();
  showAround();
}

async function showAround() {
  const { name, hit, step } = opened;
  const around = AROUND[step];
  try {
    const path = `${collectionPath(name)}/neighbours?id=${encodeURIComponent(hit.id)}&around=${around}`;
    const records = (await call(path)).records;
    if (opened.hit !== hit || opened.step !== step) return;
    let open; // the fence of a code block that the passage before left open
    byId("passages").replaceChildren(
      ...records.map((record) => {
        const source = record.metadata.source;
        const article = made("article");
        article.classList.toggle("found", record.id === hit.id);
        article.classList.toggle("lines", !isMarkdownFile(source));
        if (record.id === hit.id) article.append(made("h3", "This passage", { className: "unseen" }));
        const part = isMarkdownFile(source) ? reopened(record.text, open) : { text: record.text, open };
        open = part.open;
        article.append(...rendered(part.text, { source, matches: hit.matches }));
        return article;
      }),
    );
    byId("passages").querySelector(".found")?.scrollIntoView({ block: "start" });
    const places = records.findIndex((record) => record.id === hit.id);
    const some = places === around || records.length - 1 - places === around;
    byId("wider").hidden = !some || step === AROUND.length - 1;
  } catch (error) {
    byId("passages").replaceChildren(made("p", error.message));
  }
}

// Opens the passage that an address names.
export async function openNamed(name, id) {
  const [record] = (await call(`${collectionPath(name)}/records?id=${encodeURIComponent(id)}`)).records;
  if (!record) throw new Error(`The passage ${id} is no longer in the collection.`);
  openPassage(name, { ...record, section: record.metadata.section });
}

export function widen() {
  opened.step += 1;
  showAround();
}

// The title of a hit; without one the beginning of its text.
export function titleOf(hit) {
  const start = hit.text?.trim().split("\n")[0] ?? "";
  const file = "_node_content" in (hit.metadata ?? {}) ? hit.metadata.file_name : ""; // its text begins with metadata
  return hit.title || file || (start.length > 80 ? `${start.slice(0, 79)}…` : start) || hit.id;
}
