// The chat: streamed answers, whose numbers open passages.
import { byId, made, openPassage, problem, send } from "./common.js";

let turns = []; // of the present conversation
let running = null; // its AbortController
const earlier = []; // conversations, newest first; they end with the page

export async function describe() {
  try {
    const found = await (await send("v1/chat")).json();
    byId("model").textContent = found.language_model ? `Answers are of ${found.language_model}.` : found.reason;
  } catch (error) {
    byId("model").textContent = "";
    problem(error.message);
  }
}

async function ask(event) {
  event.preventDefault();
  const question = byId("question").value.trim();
  if (!question || running) return;
  const name = byId("collection").value;
  const mine = turns; // another conversation may begin before the answer ends
  problem();
  byId("question").value = "";
  if (!turns.length) byId("talk").replaceChildren();
  mine.push({ role: "user", content: question });
  const shown = made("article", undefined, { className: "answer" });
  const text = made("div", "Searching …", { className: "said" });
  shown.append(made("h2", "Answer", { className: "who" }), text);
  byId("talk").append(asked(question), shown);
  const answer = { text: "", citations: [], noAnswer: null };
  running = new AbortController();
  busy(true);
  let ended = "";
  let finished = false;
  try {
    const body = { model: name, messages: mine.map(({ role, content }) => ({ role, content })), stream: true };
    for await (const chunk of events(await send("v1/chat/completions", { body, signal: running.signal }))) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.citations) Object.assign(answer, { citations: chunk.citations, noAnswer: chunk.no_answer });
      answer.text += chunk.choices[0].delta.content ?? "";
      text.textContent = answer.text || "Thinking …";
      shown.scrollIntoView({ block: "nearest" });
      if (chunk.choices[0].finish_reason) finished = true;
      if (chunk.choices[0].finish_reason === "length") ended = "The answer ends at the limit of tokens.";
    }
    if (!finished) throw new Error("The answer broke off.");
  } catch (error) {
    ended = error.name === "AbortError" ? "Stopped." : answer.text && "The answer is incomplete.";
    if (error.name !== "AbortError") problem(error.message);
  } finally {
    running = null;
    busy(false);
  }
  finish(shown, text, answer, name, ended);
  mine.push({ role: "assistant", content: answer.text || "(no answer)" });
  byId("question").focus();
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

function asked(question) {
  const item = made("article", undefined, { className: "question" });
  item.append(made("h2", "Question", { className: "who" }), made("div", question, { className: "said" }));
  return item;
}

function finish(shown, text, answer, name, ended) {
  const known = new Map(answer.citations.map((one) => [one.number, one]));
  if (answer.noAnswer) {
    text.textContent = answer.noAnswer;
  } else {
    text.replaceChildren(
      ...answer.text.split(/(\[\d+\])/).map((part) => {
        const one = /^\[\d+\]$/.test(part) ? known.get(Number(part.slice(1, -1))) : undefined;
        return one ? opener(one, name, part) : document.createTextNode(part);
      }),
    );
  }
  if (ended) shown.append(made("p", ended, { className: "note" }));
  if (!known.size) return;
  const list = made("ul", undefined, { className: "sources" });
  for (const one of known.values()) {
    const item = made("li");
    item.append(opener(one, name, `[${one.number}] ${titleOf(one)}`));
    if (answer.noAnswer) item.append(made("p", one.text, { className: "text" }));
    list.append(item);
  }
  shown.append(made("h3", "Passages"), list);
}

const titleOf = (one) => [one.title, one.section].filter(Boolean).join(" · ") || one.id;

function opener(one, name, label) {
  const button = made("button", label, { type: "button", className: "cite" });
  if (/^\[\d+\]$/.test(label)) button.setAttribute("aria-label", `Passage ${one.number}: ${titleOf(one)}`);
  button.addEventListener("click", () => openPassage(name, one.id, titleOf(one)));
  return button;
}

function busy(is) {
  byId("stop").hidden = !is;
  byId("ask").querySelector("[type=submit]").disabled = is;
  byId("talk").setAttribute("aria-busy", String(is));
}

export function fresh() {
  running?.abort();
  if (turns.length) {
    const kept = { turns, shown: [...byId("talk").childNodes] };
    earlier.unshift(kept);
    const item = made("li");
    const open = made("button", kept.turns[0].content.slice(0, 80), { type: "button", className: "cite" });
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
  byId("talk").replaceChildren(made("p", "A new conversation.", { className: "note" }));
}

byId("ask").addEventListener("submit", ask);
byId("stop").addEventListener("click", () => running?.abort());
byId("fresh").addEventListener("click", fresh);
byId("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("ask").requestSubmit();
  }
});
