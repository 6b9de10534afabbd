// The chat: streamed answers, whose numbers open the passages that they are from.
import { byId, copier, made, openPassage, send, selected, spoken, titleOf } from "./common.js";
import { fieldsOf, marked, namePaths, rendered, snippet, where } from "./text.js";

let turns = []; // of the present conversation
let running = null; // its AbortController
let model = ""; // the language model's name; "" without one
const earlier = []; // conversations, newest first; they end with the page

export async function describe() {
  const found = await (await send("v1/chat")).json();
  model = found.language_model ?? "";
  byId("model").replaceChildren(
    ...(model ? [`${model} answers from the passages of the collection.`] : spoken(found.reason)),
  );
}

function ask(question) {
  const asked = made("article", undefined, { className: "question" });
  asked.append(made("h2", "Question", { className: "who" }), made("div", question, { className: "said" }));
  const shown = made("article", undefined, { className: "answer" });
  byId("talk").append(asked, shown);
  answer(question, shown);
}

async function answer(question, shown) {
  const name = selected();
  const mine = turns; // another conversation may begin before the answer ends
  const mark = mine.length;
  const text = made("div", "Searching …", { className: "said" });
  shown.replaceChildren(made("h2", model ? "Answer" : "Passages", { className: "who" }), text);
  mine.push({ role: "user", content: question });
  const said = { text: "", citations: [], noAnswer: null, query: question };
  running = new AbortController();
  const own = running;
  busy(true);
  let ended = "";
  let failed = "";
  try {
    const messages = mine.map(({ role, content }) => ({ role, content }));
    const body = { model: name, messages, stream: true, condense: true };
    let finished = false;
    for await (const chunk of events(await send("v1/chat/completions", { body, signal: own.signal }))) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.citations) {
        Object.assign(said, { citations: chunk.citations, noAnswer: chunk.no_answer, query: chunk.search_query });
      }
      said.text += chunk.choices[0].delta.content ?? "";
      if (!said.noAnswer) text.replaceChildren(...(said.text ? written(said, name) : ["Thinking …"]));
      shown.scrollIntoView({ block: "nearest" });
      if (chunk.choices[0].finish_reason) finished = true;
      if (chunk.choices[0].finish_reason === "length") ended = "The answer ends at the limit of tokens.";
    }
    if (!finished) throw new Error("The answer broke off.");
  } catch (error) {
    if (error.name === "AbortError") ended = "Stopped.";
    else failed = said.text ? `${error.message} The answer is incomplete.` : error.message;
  } finally {
    if (running === own) {
      running = null;
      busy(false);
    }
  }
  finish(shown, text, said, { name, question });
  if (ended) shown.append(made("p", ended, { className: "note" }));
  if (failed) mine.length = mark; // a question without an answer is not sent again
  else mine.push({ role: "assistant", content: said.text || "(no answer)" });
  if (failed || ended === "Stopped.") shown.append(retry(question, shown, failed, mine, mark));
  byId("question").focus({ preventScroll: true });
}

// The reason of a failure, in the bubble, with a button that asks the same question again while nothing came after it.
function retry(question, shown, failed, mine, mark) {
  const row = made("div", undefined, { className: "failed" });
  if (failed) row.append(made("p", spoken(failed), { role: "alert" }));
  const button = made("button", "Ask again", { type: "button" });
  button.addEventListener("click", () => {
    if (running || turns !== mine || shown !== byId("talk").lastElementChild) return;
    mine.length = mark;
    answer(question, shown);
  });
  row.append(button);
  return row;
}

// Server-sent events of a response, as JSON.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (left + value).split("\n\n");
    left = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

// An answer as elements; the numbers of passages open them.
function written(said, name) {
  const known = new Map(said.citations.map((one) => [one.number, one]));
  return rendered(said.text, { cite: (value) => known.has(value) && opener(known.get(value), name, `[${value}]`) });
}

function finish(shown, text, said, { name, question }) {
  if (said.noAnswer) {
    const none = said.citations.length ? "These passages match best." : said.noAnswer;
    text.replaceChildren(made("p", spoken(none)));
  } else text.replaceChildren(...(said.text ? written(said, name) : []));
  if (said.query !== question) shown.append(made("p", `Searched for: ${said.query}`, { className: "note" }));
  if (!said.citations.length) return;
  const numbers = new Set([...said.text.matchAll(/\[(\d+)\]/g)].map((found) => Number(found[1])));
  const isUsed = (one) => !said.noAnswer && numbers.has(one.number);
  const used = said.citations.filter(isUsed);
  const others = said.citations.filter((one) => !isUsed(one));
  if (said.noAnswer) {
    shown.append(passages(others, name, true));
    return;
  }
  if (used.length) shown.append(made("h3", "Passages that the answer cites"), passages(used, name, false));
  if (others.length) {
    const rest = made("details");
    rest.append(
      made("summary", used.length ? "Other passages that were found" : "Passages that were found"),
      passages(others, name, false),
    );
    rest.open = !used.length;
    shown.append(rest);
  }
  if (said.text) shown.append(copier("Copy", () => said.text));
}

function passages(citations, name, complete) {
  namePaths(citations);
  const list = made("ul", undefined, { className: "sources" });
  list.append(
    ...citations.map((one) => {
      const item = made("li");
      const title = [`[${one.number}] `, ...marked(titleOf(one), complete ? one.matches : [])];
      item.append(opener(one, name, title), made("p", where(one), { className: "path" }));
      const fields = fieldsOf(one).join(" · ");
      if (fields) item.append(made("p", fields, { className: "path fields" }));
      if (complete) item.append(made("p", snippet(one), { className: "text" }));
      return item;
    }),
  );
  return list;
}

function opener(one, name, label) {
  const button = made("button", label, { type: "button", className: "cite" });
  if (typeof label === "string") button.setAttribute("aria-label", `Passage ${one.number}: ${titleOf(one)}`);
  button.addEventListener("click", () => openPassage(name, one));
  return button;
}

function busy(is) {
  byId("stop").hidden = !is;
  byId("ask").querySelector("[type=submit]").disabled = is;
  byId("talk").setAttribute("aria-busy", String(is));
}

export function fresh() {
  running?.abort();
  running = null;
  busy(false);
  if (turns.length || byId("talk").querySelector("article")) {
    const kept = { turns, shown: [...byId("talk").childNodes] };
    earlier.unshift(kept);
    const item = made("li");
    const first = byId("talk").querySelector(".question .said").textContent;
    const open = made("button", first.slice(0, 80), { type: "button", className: "cite" });
    open.addEventListener("click", () => {
      fresh();
      turns = kept.turns;
      byId("talk").replaceChildren(...kept.shown);
      item.remove();
      byId("earlier").hidden = !byId("conversations").children.length;
    });
    item.append(open);
    byId("conversations").prepend(item);
    byId("earlier").hidden = false;
  }
  turns = [];
  byId("talk").replaceChildren();
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = byId("question").value.trim();
  if (!question || running) return;
  byId("question").value = "";
  ask(question);
});
byId("stop").addEventListener("click", () => running?.abort());
byId("fresh").addEventListener("click", fresh);
byId("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("ask").requestSubmit();
  }
});
