// The library: documents, files to add, tuning by judgments, and moves to a new context.
import { byId, call, collectionPath, counted, made, number, problem, selected, spoken } from "./common.js";
import * as judged from "./judged.js";
import { count } from "./search.js";
import { hideColumns, showColumns } from "./table.js";
import { shownNames } from "./text.js";

const PAUSE_MS = 300; // between looks at a job
const PAGE = matchMedia("(min-width: 60rem)").matches ? 50 : 10; // documents
const RECENT = 8; // jobs
const KINDS = {
  upload: "Add a file",
  reindex: "Read a file again",
  recontextualize: "Make a new context",
  rollback: "Roll back",
  "embed-pending": "Make vectors",
  drift: "Measure the gain of a new context",
  tune: "Tune the ranking",
};
const UNSTOPPABLE = ["drift", "tune"];
const ROW = /, row \d+$/; // of a place
const MOST_NAMES = 5; // of files that wait
let watched = null; // the job that is shown
const waiting = []; // files to add, each with its collection, and the fields of a table if they were chosen
let unclear = []; // tables without a column “text”, each with its collection and its columns
let adding = false;
const NOTE = "cde-rag unsent"; // key of the names of files that the server does not have yet: a reload loses the files
let lost = readNote(); // of the page before it was loaded again, each { name, collection }
let listed = 0; // documents
let canRollBack = false; // of the selected collection
let changed = async () => {};
let chosen; // ends the wait of files that came before the collections were known
const collectionChosen = new Promise((done) => {
  chosen = done;
});

export const onChange = (listener) => {
  changed = listener;
};

// A job goes on when another collection is selected: what it says then names its own.
const about = (collection, text) => (collection === selected() ? text : `${collection}: ${text}`);

// Takes no files: there is no collection.
export function close() {
  byId("files").disabled = true;
}

export function fresh() {
  chosen();
  byId("files").disabled = false;
  canRollBack = false;
  byId("rollback").disabled = true;
  byId("outcome").textContent = "";
  byId("part").value = "";
  byId("summary").textContent = "Loading …";
  byId("documents").replaceChildren();
  byId("shown").textContent = "Loading the documents …";
  byId("more-documents").hidden = true;
  listed = 0;
}

function size(bytes) {
  if (bytes === null) return "on a server";
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  const power = bytes < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}

const points = (gain) => `${gain < 0 ? "−" : "+"}${Math.abs(100 * gain).toFixed(1)}`;
const day = (iso) => new Date(iso).toLocaleDateString("en-CA");

export async function describe() {
  const name = selected();
  if (!name) {
    byId("summary").textContent = byId("files").disabled
      ? "This server has no collection."
      : "The collections are not loaded yet.";
    return;
  }
  const [found, overview, jobs] = await Promise.all([
    call(collectionPath()),
    call(`${collectionPath()}/overview`),
    call("v1/jobs"),
  ]);
  if (name !== selected()) return;
  const disk = found.disk_bytes === null ? "" : ` · ${size(found.disk_bytes)} on disk`;
  const verb = found.pending === 1 ? "waits" : "wait";
  const pending = found.pending ? ` · ${counted(found.pending, "passage")} ${verb} for vectors` : "";
  byId("summary").textContent =
    `${counted(found.documents, "passage")} in ${overview.complete ? "" : "more than "}` +
    `${counted(overview.documents, "document")}${disk} · model ${found.model}${pending}`;
  byId("unfinished").hidden = !found.unfinished;
  byId("fill").hidden = !found.pending || found.unfinished; // they would be made in a context of what is read so far
  byId("files").accept = overview.suffixes.join(",");
  const documents = overview.suffixes.includes(".pdf") ? "PDF, HTML, Word, PowerPoint, " : "";
  byId("formats").textContent =
    `Markdown, text, ${documents}notebooks, source code; tables as CSV, JSON and Parquet. ` +
    "A file replaces the document of its name. Rows of a table replace those of the same id; all others stay.";
  describeFacts(found);
  describeLost();
  describeUnclear();
  canRollBack = found.earlier_generation !== null;
  byId("no-rollback").hidden = canRollBack;
  byId("no-rollback").textContent = canRollBack ? "" : "No earlier context is kept, so there is none to roll back to.";
  byId("rollback").disabled = !canRollBack || watched !== null;
  describeTuning();
  describeJobs(jobs.data.filter((job) => job.collection === name && !columnsOf(job)));
  await list();
  const mine = jobs.data.find((job) => job.collection === name && job.status === "running");
  if (mine && !watched) {
    await watch(mine, KINDS[mine.kind]).catch(() => {}); // the list of jobs has the reason
    await refreshed(); // the facts above are those from before it ended
    await addWaiting();
  }
}

function describeFacts(found) {
  const context = found.context_size
    ? `made ${found.context_created.slice(0, 10)} from ${number(found.context_size)} of ` +
      counted(found.context_documents_seen, "passage")
    : "none: passages are read without a corpus";
  byId("context").textContent = `Context: ${context}.`;
  const facts = [
    ["Fingerprint", found.fingerprint.slice(0, 16)],
    ["Generation", String(found.generation)],
    ["Vectors", `${found.dim} dimensions`],
    ["Context", `${context}, ${found.context_sampling}, seed ${found.context_seed}`],
    ["Parents", found.parent_key ? `by ${found.parent_key}` : "none"],
    ["Search by words", found.has_bm25 ? "yes" : "no text index"],
    ["Weight of vectors", String(found.hybrid_weight)],
  ];
  byId("facts").replaceChildren(...facts.flatMap(([name, value]) => [made("dt", name), made("dd", value)]));
}

function describeTuning() {
  const answered = judged.answered();
  byId("goal-label").textContent = judged.progress();
  byId("goal").value = Math.min(judged.GOAL, answered);
  byId("tune").disabled = answered < judged.GOAL || watched !== null;
  for (const id of ["save", "save-set", "forget"]) byId(id).disabled = !judged.judgments().length;
}

// The columns of a table that has none of the name “text”: a job that failed with them only found them out.
const columnsOf = (job) => job.result?.columns;

// The sentence that an ended job leaves.
function outcomeOf(job) {
  if (job.status === "failed") return job.error;
  if (job.status === "cancelled") return "Cancelled. The same again completes it.";
  if (job.status === "running") return "Running …";
  const found = job.result;
  if (job.kind === "recontextualize") return `Moved to a new context: ${counted(found.embedded, "passage")} embedded.`;
  if (job.kind === "rollback") return "Back in the context before.";
  if (job.kind === "embed-pending") return `Made the vectors of ${counted(found.embedded, "passage")}.`;
  if (job.kind === "drift") {
    const range = `${points(found.gain)} points of NDCG@10, 90 % interval ${found.interval.map(points).join(" to ")}`;
    return found.pays ? `A new context would find more: ${range}.` : `Nothing changed: no gain to expect, so keep the context (${range}).`;
  }
  if (job.kind === "tune") {
    const range = `${points(found.gain.mean)} points of NDCG@10, 95 % interval ${points(found.gain.low)} to ${points(found.gain.high)}`;
    if (found.written) {
      return `Tuned on ${number(found.queries)} questions: vectors weigh ${found.weight}, before ${found.current_weight}. Gain ${range}.`;
    }
    return `Nothing changed: no sure gain on ${number(found.queries)} questions, so vectors keep their weight ${found.current_weight} (${range}).`;
  }
  return told(found);
}

function told(found) {
  const counts = ["added", "replaced", "updated", "unchanged", "deleted"].filter((key) => found[key]);
  const parts = counts.map((key) => `${number(found[key])} ${key}`).join(", ") || "nothing new";
  const alike = found.doubles ?? [];
  const names = shownNames(alike.flatMap((path) => [path, path.slice(path.lastIndexOf("/"))])); // each with a folder
  const others = alike.map((path) => names.get(path) ?? path).join(", ");
  const doubles = others ? ` Other documents of the same name stay: ${others}.` : "";
  const skipped = found.skipped ? ` ${counted(found.skipped, "row")} left out: ${found.reasons.join("; ")}.` : "";
  const guessed = found.guessed?.length
    ? ` Not UTF-8, and read as windows-1252 by a guess: ${found.guessed.join(", ")}. If letters are wrong, save as UTF-8.`
    : "";
  return `Passages: ${parts}.${doubles}${skipped}${guessed}`;
}

function describeJobs(jobs) {
  const recent = jobs.slice(-RECENT).reverse();
  byId("jobs-card").hidden = !recent.length;
  byId("jobs").replaceChildren(
    ...recent.map((job) => {
      const item = made("li", undefined, { className: job.status });
      const time = new Date(1000 * (job.ended ?? job.started)).toLocaleTimeString("en-GB").slice(0, 5);
      item.append(
        made("p", `${KINDS[job.kind]}${job.subject ? `: ${shownNames([job.subject]).get(job.subject) ?? job.subject}` : ""}`, { className: "what" }),
        made("p", spoken(`${time} · ${outcomeOf(job)}`), { className: "note" }),
      );
      return item;
    }),
  );
}

// The documents up to the number that was shown.
async function list() {
  const name = selected();
  const limit = Math.max(PAGE, listed);
  const part = byId("part").value.trim();
  const found = await call(`${collectionPath()}/documents?${new URLSearchParams({ q: part, limit })}`);
  if (name !== selected() || part !== byId("part").value.trim()) return;
  listed = found.data.length;
  const names = shownNames(found.data.map(fileOf));
  byId("documents").replaceChildren(...found.data.map((one) => documentOf(one, name, names)));
  byId("more-documents").hidden = listed >= found.total || limit >= 1000;
  const matching = part ? ` that match${found.total === 1 ? "es" : ""} “${part}”` : "";
  const some = listed < found.total ? `${number(listed)} of ` : "";
  byId("shown").textContent = found.total
    ? `${some}${counted(found.total, "document")}${matching}.`
    : part
      ? "No document matches."
      : "No documents yet.";
}

// The file of a document, and of a row of a table.
const fileOf = (one) => (one.is_file ? one.name : (one.place ?? "").replace(ROW, ""));

function documentOf(one, name, names) {
  const item = made("li");
  const dates = [one.uploaded && `added ${day(one.uploaded)}`, one.modified && `changed ${day(one.modified)}`];
  const facts = [counted(one.passages, "passage"), ...dates.filter(Boolean)].join(" · ");
  const text = made("div");
  const file = names.get(fileOf(one));
  const place = one.place && file ? file + one.place.match(ROW)[0] : one.place;
  const given = one.is_file && file ? file : one.name;
  const path = one.has_digest && place ? place : given; // an id that nobody gave says nothing
  const from = place && place !== path ? ` · ${place}` : ""; // of a row that has an id
  const label = one.label === one.name ? path : one.label;
  if (label !== path) text.append(made("p", label, { className: "what" }));
  text.append(made("p", path + from, { className: "path" }), made("p", facts, { className: "note" }));
  const actions = made("div", undefined, { className: "actions" });
  if (one.can_reindex) {
    actions.append(
      action("Read again", `Read ${path} again`, () =>
        run("documents/reindex", { document: one.name }, `Reading ${path}`),
      ),
    );
  }
  actions.append(action("Delete", `Delete ${path}`, () => remove(one, name, path)));
  item.append(text, actions);
  return item;
}

function action(text, label, listener) {
  const button = made("button", text, { type: "button", disabled: watched !== null });
  button.setAttribute("aria-label", label);
  button.addEventListener("click", listener);
  return button;
}

async function remove(one, name, path) {
  const named = [one.name, path].includes(one.label) ? path : `“${one.label}” (${path})`;
  byId("sure-text").textContent = `Delete ${named} with ${counted(one.passages, "passage")}? Files on the disk stay.`;
  byId("sure").returnValue = "no";
  byId("sure").showModal();
  await new Promise((done) => byId("sure").addEventListener("close", done, { once: true }));
  if (byId("sure").returnValue !== "yes") return;
  problem();
  try {
    const body = one.where ? { where: one.where } : { ids: [one.name] };
    const { deleted } = await call(`${collectionPath(name)}/records/delete`, body);
    byId("outcome").textContent = about(name, `${path} is deleted: ${counted(deleted, "passage")}.`);
  } catch (error) {
    problem(about(name, error.message), "library");
  }
  await refreshed();
}

// Shows a job until it ends; returns it.
async function watch(job, label) {
  watched = job;
  byId("job-label").textContent = about(job.collection, label);
  byId("job").hidden = false;
  byId("cancel").hidden = UNSTOPPABLE.includes(job.kind);
  lock(true);
  try {
    while (job.status === "running") {
      if (job.total) byId("progress").value = job.done / job.total;
      else byId("progress").removeAttribute("value");
      const progress = job.total ? `: ${number(job.done)} of ${number(job.total)}` : " …";
      byId("job-label").textContent = about(job.collection, label + progress);
      await new Promise((done) => setTimeout(done, PAUSE_MS));
      job = await call(`v1/jobs/${job.id}`);
    }
  } finally {
    watched = null;
    byId("job").hidden = true;
    lock(false);
  }
  if (job.status === "failed") throw Object.assign(new Error(job.error), { columns: columnsOf(job) });
  return job;
}

function lock(is) {
  const buttons = byId("view-library").querySelectorAll("#move button, #tune, #fill, .actions button");
  for (const button of buttons) button.disabled = is;
  if (is) return;
  byId("rollback").disabled = !canRollBack;
  describeTuning();
}

async function run(path, body, label) {
  const name = selected();
  problem();
  byId("outcome").textContent = "";
  try {
    const job = await watch(await call(`${collectionPath(name)}/${path}`, body), label);
    byId("outcome").textContent = about(name, outcomeOf(job));
  } catch (error) {
    problem(about(name, error.message), "library");
  }
  await refreshed();
  await addWaiting();
}

async function refreshed() {
  try {
    await describe();
    await changed();
  } catch (error) {
    problem(error.message, "library");
  }
}

// Adds files after those that wait; all go into the collection that is selected now, or first.
async function upload(files) {
  await collectionChosen;
  problem();
  const collection = selected();
  waiting.push(...files.map((file) => ({ file, collection })));
  unclear = unclear.filter((one) => one.collection !== collection || !files.some((file) => file.name === one.file.name));
  describeWaiting();
  byId("upload").reset();
  await addWaiting();
}

function readNote() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(NOTE) ?? "[]");
    return kept.filter((one) => typeof one?.name === "string" && typeof one.collection === "string");
  } catch {
    return []; // the browser keeps nothing, or another program wrote there
  }
}

function writeNote() {
  const unsent = [...waiting, ...unclear];
  const names = [...lost, ...unsent.map(({ file, collection }) => ({ name: file.name, collection }))];
  try {
    if (names.length) sessionStorage.setItem(NOTE, JSON.stringify(names));
    else sessionStorage.removeItem(NOTE);
  } catch {
    // a reload then loses them without a word
  }
}

// Names the files that a reload lost, until they are dropped again or dismissed.
function describeLost() {
  const places = new Set(lost.map((one) => one.collection));
  const verb = lost.length === 1 ? "was" : "were";
  const names = lost.map((one) => one.name).join(", ");
  const again = `drop ${lost.length === 1 ? "it" : "them"} again`;
  const where = [...places].every((one) => one === selected()) ? "" : ` to ${[...places].join(", ")}`;
  byId("lost").hidden = !lost.length;
  byId("lost-text").textContent = lost.length
    ? `${counted(lost.length, "file")} ${verb} not added${where}, as the page was left: ${names}; ${again}.`
    : "";
}

function describeWaiting() {
  const isAgain = (one) => waiting.some(({ file, collection }) => one.name === file.name && one.collection === collection);
  lost = lost.filter((one) => !isAgain(one));
  describeLost();
  writeNote();
  const names = waiting.map(({ file }) => file.name);
  const more = names.length > MOST_NAMES ? ` and ${number(names.length - MOST_NAMES)} more` : "";
  byId("waiting").textContent = names.length
    ? `${counted(names.length, "file")} waiting to be added: ${names.slice(0, MOST_NAMES).join(", ")}${more}.`
    : "";
}

// Shows the columns of the first table whose text is not known, and of others that have the same columns.
function describeUnclear() {
  const mine = unclear.filter((one) => one.collection === selected());
  if (!mine.length) {
    hideColumns();
    return;
  }
  const named = ({ columns }) => JSON.stringify(columns.map(({ name }) => name));
  const alike = mine.filter((one) => named(one) === named(mine[0]));
  showColumns(alike.map(({ file }) => file.name), mine[0].columns, async (fields) => {
    unclear = unclear.filter((one) => !alike.includes(one));
    if (fields) waiting.push(...alike.map(({ file, collection }) => ({ file, collection, fields })));
    describeWaiting();
    describeUnclear();
    await addWaiting();
  });
}

// Adds the files that wait, one after another, once no other job runs; one that fails is named, and the others are added.
async function addWaiting() {
  if (adding || watched || !waiting.length) return;
  adding = true;
  byId("outcome").textContent = "";
  const name = waiting[0].collection;
  const sums = { added: 0, replaced: 0, updated: 0, unchanged: 0, deleted: 0, skipped: 0, doubles: [], guessed: [], reasons: [] };
  const failures = [];
  let place = 0;
  let added = 0;
  let cancelled = false;
  while (waiting[0]?.collection === name && !cancelled) {
    const { file, fields } = waiting[0];
    const label = `Adding ${file.name} (${++place} of ${place - 1 + waiting.length})`;
    try {
      const job = await sent(file, name, fields);
      waiting.shift();
      describeWaiting();
      const ended = await watch(job, label);
      cancelled = ended.status === "cancelled";
      if (cancelled) break;
      added += 1;
      for (const [key, sum] of Object.entries(sums)) {
        if (Array.isArray(sum)) sum.push(...(ended.result[key] ?? []));
        else sums[key] += ended.result[key] ?? 0;
      }
    } catch (error) {
      if (waiting[0]?.file === file) waiting.shift();
      if (error.columns && !fields) {
        unclear.push({ file, collection: name, columns: error.columns });
        writeNote();
      } else failures.push(error.message.startsWith(file.name) ? error.message : `${file.name}: ${error.message}`);
    }
  }
  const left = cancelled ? waiting.splice(0).map(({ file }) => file.name) : [];
  describeWaiting();
  describeUnclear();
  if (added || cancelled) {
    const dropped = left.length ? `Cancelled. Not added: ${left.join(", ")}. ` : "Cancelled. ";
    byId("outcome").textContent = about(name, `${cancelled ? dropped : ""}${told(sums)}`);
  }
  if (failures.length) problem(about(name, failures.join(" ")), "library");
  adding = false;
  await refreshed();
  await addWaiting();
}

// Sends a file, after a job of another page or program where one runs; returns the job that adds it.
async function sent(file, name, fields = []) {
  const given = new URLSearchParams([["filename", file.name], ...fields.map((field) => ["fields", field])]);
  for (;;) {
    try {
      return await call(`${collectionPath(name)}/files?${given}`, undefined, { raw: file, method: "POST" });
    } catch (error) {
      if (error.code !== "job_running") throw error;
      const other = (await call("v1/jobs")).data.find((job) => job.collection === name && job.status === "running");
      if (other) await watch(other, KINDS[other.kind]).catch(() => {}); // the list of jobs has the reason
    }
  }
}

async function tried(work) {
  problem();
  try {
    await work();
  } catch (error) {
    problem(error.message, "library");
  }
}

byId("files").addEventListener("change", () => upload([...byId("files").files]));
byId("dismiss").addEventListener("click", () => {
  lost = [];
  describeLost();
  writeNote();
});
byId("upload").addEventListener("submit", (event) => event.preventDefault());
for (const kind of ["dragover", "drop", "dragleave"]) {
  document.addEventListener(kind, (event) => {
    if (byId("view-library").hidden || !event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    byId("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") upload([...event.dataTransfer.files]);
  });
}
// The documents that are shown are filtered at once; the server's answer has those that are not shown, too.
byId("part").addEventListener("input", () => {
  const part = byId("part").value.trim().toLowerCase();
  for (const item of byId("documents").children) {
    const names = [...item.querySelectorAll(".what, .path")].map((one) => one.textContent).join("\n");
    item.hidden = !names.toLowerCase().includes(part);
  }
  byId("shown").textContent = "Searching the documents …";
  listed = 0;
  tried(list);
});
byId("more-documents").addEventListener("click", () => {
  listed += PAGE;
  tried(list);
});
byId("tune").addEventListener("click", () => run("tune", { judgments: judged.judgments() }, "Tuning the ranking"));
byId("save").addEventListener("click", () => tried(judged.save));
byId("save-set").addEventListener("click", () => tried(judged.saveSet));
byId("forget").addEventListener("click", () => {
  judged.forget();
  count();
  describeTuning();
});
byId("move").addEventListener("submit", (event) => {
  event.preventDefault();
  run("recontextualize", { seed: Number(byId("seed").value) || 0 }, "Embedding in the new context");
});
byId("fill").addEventListener("click", () => run("embed-pending", {}, "Making vectors"));
byId("rollback").addEventListener("click", () => run("rollback", {}, "Rolling back"));
byId("drift").addEventListener("click", () => run("drift", {}, "Measuring the gain of a new context"));
byId("cancel").addEventListener("click", async () => {
  if (watched) await call(`v1/jobs/${watched.id}/cancel`, {}).catch((error) => problem(error.message, "library"));
});
