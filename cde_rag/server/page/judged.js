// Judgments of hits, kept by this browser for each collection until they are forgotten.
import { collectionPath, download, selected, send } from "./common.js";

export const GOAL = 20; // judged questions from which the ranking can be tuned
const key = () => `cde-rag judged ${selected()}`;
let marks = new Map(); // query → id → "right" or "wrong"

// Reads the judgments of the selected collection.
export function read() {
  marks = new Map();
  try {
    const kept = JSON.parse(localStorage.getItem(key()) ?? "[]");
    marks = new Map(kept.map(([query, each]) => [query, new Map(each)]));
  } catch {
    // the browser keeps nothing, or another program wrote there
  }
}

function keep() {
  try {
    if (marks.size) localStorage.setItem(key(), JSON.stringify([...marks].map(([query, each]) => [query, [...each]])));
    else localStorage.removeItem(key());
  } catch {
    // they stay until the page is closed
  }
}

export const markOf = (query, id) => marks.get(query)?.get(id);

// Marks a hit, or takes the same mark back.
export function mark(query, id, value) {
  const each = marks.get(query) ?? new Map();
  if (each.get(id) === value) each.delete(id);
  else each.set(id, value);
  if (each.size) marks.set(query, each);
  else marks.delete(query);
  keep();
}

export function forget() {
  marks = new Map();
  keep();
}

export function judgments() {
  const withMark = (each, value) => [...each].filter(([, one]) => one === value).map(([id]) => id);
  return [...marks].map(([query, each]) => ({
    query,
    right: withMark(each, "right"),
    wrong: withMark(each, "wrong"),
  }));
}

// The number of questions with a passage that is right: those that count.
export const answered = () => judgments().filter((one) => one.right.length).length;

// The number of questions that count, and the reason why others do not.
export function progress() {
  const found = answered();
  const others = judgments().length - found;
  const count = found < GOAL ? `${found} of ${GOAL} judged questions` : `${found} judged questions (${GOAL} are enough)`;
  if (!others) return count;
  return `${count}; ${others} more without a right hit ${others === 1 ? "does" : "do"} not count`;
}

export function save() {
  const lines = judgments()
    .filter((one) => one.right.length)
    .map(({ query, right }) => ({ question: query, answers: right.map((id) => ({ id })) }));
  if (!lines.length) throw new Error("The file holds questions with passages that are right. Mark one first.");
  const text = lines.map((line) => `${JSON.stringify(line)}\n`).join("");
  download(new Blob([text], { type: "application/jsonl" }), "judged.jsonl");
}

export async function saveSet() {
  const name = selected();
  const response = await send(`${collectionPath(name)}/judgments`, { body: { judgments: judgments() } });
  download(await response.blob(), `${name}-judged.zip`);
}
