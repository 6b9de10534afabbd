// Texts of documents as elements: words of a query are marked, Markdown is rendered. Nothing is ever set as HTML.
import { made } from "./common.js";

const WORD = /[\p{L}\p{N}_][\p{L}\p{M}\p{N}_\u00ad\u200b-\u200d]*/gu;
const MARKDOWN = /\.(md|markdown|mdx|qmd|rmd|ipynb|html?|pdf|docx|pptx)$/i; // documents are read as Markdown
const ABSOLUTE = /^(?:\/|[A-Za-z]:[\\/]|\\\\)/;
const DIGEST = /^[0-9a-f]{32}$/; // the id of a record that was given none
const LONGEST = 20_000; // characters that are rendered; more are shown as they are
const SNIPPET = 230; // characters
const MOST_WORDS = 500; // of a query, in a text, that a snippet is chosen by
const LEAD = 70; // characters before the first word that was found
const INLINE =
  /(?<ticks>`+)(?!`)(?<code>[\s\S]*?[^`])\k<ticks>(?!`)|!\[(?<alt>[^\]]*)\]\([^()]*(?:\([^()]*\)[^()]*)*\)|\[(?<label>[^\][]+)\]\((?<href>[^()\s]*(?:\([^()]*\)[^()\s]*)*)[^)]*\)|\*\*(?=\S)(?<strong>[\s\S]+?)\*\*|(?<![\w*\\])\*(?=[^\s*])(?<em>[^*\n]+?)\*(?![\w*])|(?<![\w\\])_(?=[^\s_])(?<low>[^_\n]+?)_(?!\w)|\[(?<cite>\d{1,3})\]/g;
const FENCE = /^\s*(```+|~~~+)/;
const FENCES = /^\s*(```+|~~~+)[^\S\n]*(.*)$/gm;
const ITEM = /^(\s*)(?:[-*+]|(\d+)[.)])\s+(.*)$/;
const RULE = /^\s*([-*_])(\s*\1){2,}\s*$/;
const BAR = /^\s*\|.*\|\s*$/;
const SEPARATOR = /^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?\s*$/;
const HEADING = /^\s{0,3}#{1,6}\s+(.*?)\s*#*\s*$/;
const NOTE = /^\s*(?:!!!|\?\?\?)\s+\w+(?:\s+"(.*)")?\s*$/; // MkDocs' boxes
const QUOTE = /^\s*>\s?/;
const BEGINS = [FENCE, ITEM, RULE, BAR, HEADING, NOTE, QUOTE];

const isMarkdown = (source) => typeof source !== "string" || MARKDOWN.test(source) || !/\.\w+$/.test(source);

// The names by which to show files of no indexed folder, whose own names are paths of the server: the last part of each,
// with as many folders as tell it from the others.
export function shownNames(paths) {
  const names = new Map();
  let left = [...new Set(paths)].filter((path) => ABSOLUTE.test(path));
  for (let parts = 1; left.length; parts += 1) {
    const sharing = new Map();
    for (const path of left) {
      const tail = path.split(/[\\/]/).slice(-parts).join("/");
      sharing.set(tail, [...(sharing.get(tail) ?? []), path]);
    }
    for (const [tail, [path, ...others]] of sharing) if (!others.length) names.set(path, tail);
    left = left.filter((path) => !names.has(path));
  }
  return names;
}

// The file of a row or passage, else the `source` or id of a record.
function sourceOf(hit) {
  const known = [hit.metadata?.table?.file, hit.metadata?.source];
  return known.find((one) => typeof one === "string") ?? hit.id;
}

const isRowOfFile = ({ metadata }) => typeof metadata?.table?.file === "string" && typeof metadata.table.row === "number";

function isPassageOfFile({ id, metadata }) {
  const source = metadata?.source;
  return typeof source === "string" && id.replace(/#\d+$/, "") === source && id !== source;
}

// Gives hits that are shown together the `path` by which `where` shows them.
export function namePaths(hits) {
  const names = shownNames(hits.filter((hit) => isRowOfFile(hit) || isPassageOfFile(hit)).map(sourceOf));
  for (const hit of hits) hit.path = names.get(sourceOf(hit)) ?? sourceOf(hit);
}

// Where a hit stands: `path › section · lines 3–9`.
export function where(hit) {
  if (hit.path === undefined) namePaths([hit]);
  const section = hit.title?.endsWith(hit.section) ? "" : hit.section;
  const path = [hit.path, ...(section ? section.split(" > ") : [])].join(" › ");
  return hit.place ? `${path} · ${hit.place}` : path;
}

const NODE = ["_node_content", "_node_type", "_node_id", "doc_id", "document_id", "ref_doc_id"];

// The fields of a row or record that filters can name, in words: `minutes: 25`. A passage of a file has none, since
// its place says it all; of a row the id, unless it is a digest, comes first.
export function fieldsOf(hit) {
  const { source, table, ...rest } = hit.metadata ?? {};
  const isRow = isRowOfFile(hit);
  if (isPassageOfFile(hit) && !isRow) return [];
  const given = isRow && source !== undefined ? { source, ...rest } : rest;
  const isNode = "_node_content" in given; // of LlamaIndex, which keeps the node as JSON, and ids of it
  const words = Object.entries(given).flatMap(([key, value]) => {
    if (isNode && NODE.includes(key)) return [];
    const simple = [value].flat(Infinity).filter((one) => ["string", "number", "boolean"].includes(typeof one));
    const said = simple.map(String).filter((one) => one.trim()).join(", ");
    return said ? [`${key}: ${said}`] : [];
  });
  return isRow && !DIGEST.test(hit.id) ? [hit.id, ...words] : words;
}

// The words of a text as nodes, those that match marked.
export function marked(text, matches = []) {
  const words = new Set(matches.map((word) => word.toLowerCase()));
  const nodes = [];
  let last = 0;
  for (const found of words.size ? text.matchAll(WORD) : []) {
    if (!words.has(found[0].toLowerCase())) continue;
    nodes.push(text.slice(last, found.index), made("mark", found[0]));
    last = found.index + found[0].length;
  }
  return [...nodes, text.slice(last)].filter((node) => node !== "");
}

// Two or three lines of a text around the words that match, without markup, as nodes.
export function snippet(hit) {
  const isShort = hit.text.length <= LONGEST; // the time of `plain` can grow with the square of the length
  const text = isShort && isMarkdown(hit.metadata?.source) ? plain(hit.text) : hit.text.replace(/\s+/g, " ").trim();
  const words = new Set((hit.matches ?? []).map((word) => word.toLowerCase()));
  const found = [...text.matchAll(WORD)].filter((one) => words.has(one[0].toLowerCase())).slice(0, MOST_WORDS);
  let [start, most] = [0, 0];
  for (const first of found) {
    const begin = Math.max(0, first.index - LEAD);
    const inside = found.filter((one) => one.index >= begin && one.index < begin + SNIPPET);
    const distinct = new Set(inside.map((one) => one[0].toLowerCase())).size;
    if (distinct > most) [start, most] = [begin, distinct];
  }
  if (start) {
    const sentence = text.slice(start, start + LEAD).search(/[.!?:]\s+\S/);
    start += sentence >= 0 ? sentence + 2 : Math.max(0, text.slice(start, start + LEAD).indexOf(" ") + 1);
  }
  let end = Math.min(text.length, start + SNIPPET);
  if (end < text.length) end = Math.max(start + SNIPPET / 2, text.lastIndexOf(" ", end));
  return [start ? "… " : "", ...marked(text.slice(start, end), hit.matches), end < text.length ? " …" : ""];
}

// Microsoft's Markdown: pictures become those of Markdown, notes a word, and other directives are left out, as are
// kramdown's attributes, such as `{:target="_blank"}`; code stays.
const DIRECTIVES =
  /(?<kept>(`+)[^`]*\2)|\[!(?<note>NOTE|TIP|IMPORTANT|WARNING|CAUTION)\]|\[!\w[\w-]*\s*\[[^\]]*\]\([^()\s]*\)\]|\[!\w[\w-]*(?:\s[^\][]*)?\]|:::image(?<image>(?:(?!:::)[^])*):::|^[^\S\n]*:::.*$|\{:(?:\s*(?:[.#][\w-]+|[\w-]+="[^"\n]*"))+\s*\}|(?<line><br\s*\/?>)/gim;

function withoutDirectives(text) {
  return text.replace(DIRECTIVES, (...found) => {
    const { kept, note, image } = found.at(-1);
    if (kept !== undefined) return kept;
    if (note !== undefined) return `**${note[0].toUpperCase()}${note.slice(1).toLowerCase()}:**`;
    const alt = image?.match(/alt-text="([^"\]]*)"/i)?.[1];
    return alt ? `![${alt}]()` : found.at(-1).line ? " " : "";
  });
}

const headed = (_, heading) => (/[\p{L}\p{N})`]$/u.test(heading) ? `${heading}:` : heading);

// A Markdown text without its markup, on one line. Headings at its begin stand in the path of the hit.
function plain(text) {
  let rest = withoutDirectives(text.replace(/<!--[\s\S]*?-->/g, " ")).trim();
  while (/^#{1,6}\s.*\n\s*\S/.test(rest)) rest = rest.slice(rest.indexOf("\n")).trim();
  return rest
    .split("\n")
    .filter((line) => !FENCE.test(line) && !RULE.test(line) && !SEPARATOR.test(line))
    .map((line) => line.replace(HEADING, headed).replace(QUOTE, "").replace(ITEM, "$3").replace(NOTE, "$1"))
    .map((line) => (BAR.test(line) ? line.trim().slice(1, -1).trim().replace(/\s*\|\s*/g, " · ") : line))
    .join(" ")
    .replace(INLINE, (...found) => {
      const { code, alt, label, strong, em, low, cite } = found.at(-1);
      return code ?? alt ?? label ?? strong ?? em ?? low ?? `[${cite}]`;
    })
    .replace(/\s+/g, " ")
    .trim();
}

// A passage whose code block begins in the passage before is given its fence. `open` is what that left open; if it is not
// known, a first fence without a language, of an odd number, ends a block.
export function reopened(text, open) {
  const fences = [...text.matchAll(FENCES)];
  const inside = open ?? (fences.length % 2 === 1 && !fences[0][2].trim() && fences[0].index > 0 ? fences[0][1] : "");
  const marks = [...(inside ? [inside] : []), ...fences.map((found) => found[1])];
  return { text: inside ? `${inside}\n${text}` : text, open: marks.length % 2 ? marks.at(-1) : "" };
}

export const isMarkdownFile = (source) => typeof source === "string" && MARKDOWN.test(source);

// A text as elements: Markdown rendered, other texts as they are. `cite` makes the element of a number in brackets.
export function rendered(text, { source, matches = [], cite } = {}) {
  if (text.length > LONGEST || !isMarkdown(source)) {
    return [made("div", marked(text, matches), { className: "as-is" })];
  }
  const span = (part, code) => (code ? marked(part, matches) : inline(part, matches, cite));
  return blocks(withoutDirectives(text.replace(/<!--[\s\S]*?-->/g, "")).split("\n"), span);
}

function inline(text, matches, cite) {
  const nodes = [];
  let last = 0;
  for (const found of text.matchAll(INLINE)) {
    const { code, alt, label, href, strong, em, low, cite: cited } = found.groups;
    let node;
    if (code !== undefined) node = made("code", marked(code.trim(), matches));
    else if (alt !== undefined) node = made("em", alt ? `[${alt}]` : "");
    else if (label !== undefined) node = linked(inline(label, matches), href);
    else if (strong !== undefined) node = made("strong", inline(strong, matches, cite));
    else if (em ?? low) node = made("em", inline(em ?? low, matches, cite));
    else node = cite?.(Number(cited));
    if (!node) continue;
    nodes.push(...marked(text.slice(last, found.index), matches), node);
    last = found.index + found[0].length;
  }
  return [...nodes, ...marked(text.slice(last), matches)];
}

// Only addresses of the web are links: others lead into a folder that the page does not have.
function linked(label, href) {
  if (!/^https?:\/\//i.test(href)) return made("span", label);
  return made("a", label, { href, target: "_blank", rel: "noopener noreferrer" });
}

function blocks(lines, span) {
  const found = [];
  let at = 0;
  const takeWhile = (holds) => {
    const begin = at;
    while (at < lines.length && holds(lines[at])) at += 1;
    return lines.slice(begin, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) at += 1;
    else if (FENCE.test(line)) {
      const fence = line.match(FENCE)[1];
      at += 1;
      const code = takeWhile((each) => !each.trim().startsWith(fence));
      at += 1;
      if (code.some((each) => each.trim())) {
        found.push(made("pre", made("code", span(code.join("\n"), true)), { tabIndex: 0 }));
      }
    } else if (HEADING.test(line) || NOTE.test(line)) {
      at += 1;
      const title = line.match(HEADING)?.[1] ?? line.match(NOTE)[1] ?? "Note";
      found.push(made("p", span(title), { className: "heading" }));
    } else if (RULE.test(line)) {
      at += 1;
      found.push(made("hr"));
    } else if (BAR.test(line)) found.push(table(takeWhile((each) => BAR.test(each)), span));
    else if (QUOTE.test(line)) {
      const quoted = takeWhile((each) => QUOTE.test(each)).map((each) => each.replace(QUOTE, ""));
      found.push(made("blockquote", blocks(quoted, span)));
    } else if (ITEM.test(line)) found.push(list(takeWhile, lines, () => at, span));
    else {
      const begin = at;
      at += 1;
      takeWhile((each) => each.trim() && !BEGINS.some((form) => form.test(each)));
      found.push(made("p", span(lines.slice(begin, at).map((each) => each.trim()).join("\n"))));
    }
  }
  return found;
}

function list(takeWhile, lines, at, span) {
  const [, indent, ordered] = lines[at()].match(ITEM);
  const begins = (line) => ITEM.test(line) && line.match(ITEM)[1].length <= indent.length;
  const element = made(ordered ? "ol" : "ul", undefined, ordered ? { start: Number(ordered) } : {});
  while (at() < lines.length && begins(lines[at()]) && Boolean(lines[at()].match(ITEM)[2]) === Boolean(ordered)) {
    let first = true;
    let blank = false;
    const body = takeWhile((line) => {
      if (first) {
        first = false;
        return true;
      }
      const inside = line.search(/\S/) > indent.length;
      const goesOn = !line.trim() || inside || (!blank && !BEGINS.some((form) => form.test(line)));
      blank = !line.trim();
      return goesOn && !(begins(line) && line.trim());
    });
    const rest = body.slice(1).map((line) => line.slice(Math.min(line.length, indent.length + 2)));
    element.append(made("li", blocks([body[0].match(ITEM)[3], ...rest], span)));
  }
  return element;
}

function table(lines, span) {
  const cells = (line) => line.trim().slice(1, -1).split(/(?<!\\)\|/);
  const element = made("table");
  const headed = lines.length > 1 && SEPARATOR.test(lines[1]);
  lines.forEach((line, number) => {
    if (SEPARATOR.test(line)) return;
    const tag = headed && number === 0 ? "th" : "td";
    element.append(made("tr", cells(line).map((cell) => made(tag, span(cell.trim())))));
  });
  return made("div", element, { className: "wide", tabIndex: 0 });
}
