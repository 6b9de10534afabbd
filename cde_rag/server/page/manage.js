// The collection: its facts, files to add, and moves to a new context.
import { byId, call, collectionPath, made, problem } from "./common.js";

const PAUSE_MS = 300; // between looks at a job
let watched = null; // the job that is shown
let changed = () => {};

export const onChange = (listener) => {
  changed = listener;
};

const selected = () => byId("collection").value;
// A job goes on when another collection is selected: what it says then names its own.
const about = (collection, text) => (collection === selected() ? text : `${collection}: ${text}`);

export const fresh = () => {
  byId("outcome").textContent = "";
};

const number = (value) => value.toLocaleString("en");

function size(bytes) {
  if (bytes === null) return "on a server";
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  const power = bytes < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** power).toFixed(power ? 1 : 0)} ${units[power]}`;
}

export async function describe() {
  const name = selected();
  if (!name) {
    byId("facts").replaceChildren();
    byId("outcome").textContent = "This server has no collection.";
    return;
  }
  const found = await call(collectionPath());
  if (name !== selected()) return;
  const context = found.context_size
    ? `${number(found.context_size)} of ${number(found.context_documents_seen)} passages, ` +
      `${found.context_sampling}, seed ${found.context_seed}, ${found.context_created.slice(0, 10)}`
    : "the null context: made without passages";
  const facts = [
    ["Passages", number(found.documents)],
    ["Model", `${found.model}, ${found.dim} dimensions`],
    ["Context", context],
    ["Fingerprint", found.fingerprint.slice(0, 16)],
    ["Generation", String(found.generation)],
    ["Siblings", found.parent_key ? `by ${found.parent_key}` : "none"],
    ["Text index", found.has_bm25 ? "for BM25" : "none"],
    ["On disk", size(found.disk_bytes)],
  ];
  byId("facts").replaceChildren(
    ...facts.map(([name, value]) => {
      const fact = made("div");
      fact.append(made("dt", name), made("dd", value));
      return fact;
    }),
  );
  const jobs = (await call("v1/jobs")).data;
  const mine = jobs.find((job) => job.collection === selected() && job.status === "running");
  if (mine && !watched) {
    const job = await watch(mine, mine.kind);
    byId("outcome").textContent = about(job.collection, `${job.kind}: ${job.status}.`);
    await refreshed(); // the facts above are those from before it ended
  }
}

// Shows a job until it ends; returns it.
async function watch(job, label) {
  watched = job;
  byId("job-label").textContent = about(job.collection, label);
  byId("job").hidden = false;
  byId("cancel").disabled = job.kind === "drift";
  lock(true);
  try {
    while (job.status === "running") {
      if (job.total) byId("progress").value = job.done / job.total;
      else byId("progress").removeAttribute("value");
      const counted = job.total ? `: ${number(job.done)} of ${number(job.total)}` : " …";
      byId("job-label").textContent = about(job.collection, label + counted);
      await new Promise((done) => setTimeout(done, PAUSE_MS));
      job = await call(`v1/jobs/${job.id}`);
    }
  } finally {
    watched = null;
    byId("job").hidden = true;
    lock(false);
  }
  if (job.status === "failed") throw new Error(job.error);
  return job;
}

function lock(is) {
  for (const button of byId("view-manage").querySelectorAll("form button")) button.disabled = is;
}

async function run(path, body, label, told) {
  const name = selected();
  problem();
  byId("outcome").textContent = "";
  try {
    const job = await watch(await call(`${collectionPath()}/${path}`, body), label);
    byId("outcome").textContent = about(name, job.status === "cancelled" ? `${label}: cancelled.` : told(job.result));
  } catch (error) {
    problem(about(name, error.message));
  }
  await refreshed();
}

async function refreshed() {
  try {
    await describe();
    await changed();
  } catch (error) {
    problem(error.message);
  }
}

async function upload(event) {
  event.preventDefault();
  problem();
  byId("outcome").textContent = "";
  const files = [...byId("files").files];
  const [name, folder] = [selected(), `${collectionPath()}/files`]; // all go where the first goes
  const counts = { added: 0, replaced: 0, unchanged: 0, deleted: 0 };
  const doubles = new Set();
  const told = () =>
    `Passages: ${Object.entries(counts).map(([key, count]) => `${number(count)} ${key}`).join(", ")}.` +
    (doubles.size ? ` Other documents of the same name stay: ${[...doubles].join(", ")}.` : "");
  let place = 0;
  let stopped = false;
  try {
    for (const file of files) {
      const label = `Adding ${file.name} (${++place} of ${files.length})`;
      const path = `${folder}?filename=${encodeURIComponent(file.name)}`;
      const job = await watch(await call(path, undefined, { raw: file, method: "POST" }), label);
      stopped = job.status === "cancelled";
      if (stopped) break;
      for (const key of Object.keys(counts)) counts[key] += job.result[key];
      for (const source of job.result.doubles) doubles.add(source);
    }
    byId("outcome").textContent = about(name, (stopped ? "Cancelled. " : "") + told());
    byId("upload").reset();
  } catch (error) {
    problem(about(name, `${files[place - 1]?.name ?? ""}: ${error.message}`));
    if (place > 1) byId("outcome").textContent = about(name, `The files before it are added. ${told()}`);
  }
  await refreshed();
}

const points = (gain) => `${gain < 0 ? "−" : "+"}${Math.abs(100 * gain).toFixed(1)}`;

byId("upload").addEventListener("submit", upload);
byId("move").addEventListener("submit", (event) => {
  event.preventDefault();
  const told = (report) =>
    `Moved to context ${report.fingerprint.slice(0, 16)}: ${number(report.embedded)} passages embedded.`;
  run("recontextualize", { seed: Number(byId("seed").value) || 0 }, "Embedding in the new context", told);
});
byId("rollback").addEventListener("click", () =>
  run("rollback", {}, "Rolling back", (report) => `Back in context ${report.fingerprint.slice(0, 16)}.`),
);
byId("drift").addEventListener("click", () =>
  run("drift", {}, "Measuring drift", (report) => {
    const range = report.interval.map(points).join(" to ");
    const pays = report.pays ? "It pays." : "It does not surely pay.";
    return `A new context would change NDCG@10 by ${points(report.gain)} points (90 % interval ${range}). ${pays}`;
  }),
);
byId("cancel").addEventListener("click", async () => {
  if (watched) await call(`v1/jobs/${watched.id}/cancel`, {}).catch((error) => problem(error.message));
});
