// Shared by the views. Texts of documents are set as text, never as HTML.
export const byId = (id) => document.getElementById(id);
export const collectionPath = () => `v1/collections/${encodeURIComponent(byId("collection").value)}`;

export function made(tag, text, properties = {}) {
  const element = Object.assign(document.createElement(tag), properties);
  if (text !== undefined) element.textContent = text;
  return element;
}

export function problem(text = "") {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
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
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // the answer is another program's, such as a proxy's
  }
  throw new Error(message);
}

export const call = async (path, body, options = {}) => (await send(path, { body, ...options })).json();

export function download(content, name) {
  const url = URL.createObjectURL(content);
  made("a", undefined, { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}

export async function openPassage(name, id, title) {
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
    byId("passages").querySelector(".found")?.scrollIntoView({ block: "nearest" });
  } catch (error) {
    byId("passages").replaceChildren(made("p", error.message));
  }
}
