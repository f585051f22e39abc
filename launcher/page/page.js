"use strict";
// Draws the page from one document (launcher/page/document.py), and again whenever it is given another.
// Whatever a document says is put in as text, never as markup.

const read = (id) => JSON.parse(document.getElementById(id).textContent);
let { figures, look } = read("figures");
const MOST_ROWS = 1000;
let shown = read("document");

function make(tag, text, kind) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

function fill(id, ...children) {
  const place = document.getElementById(id);
  place.replaceChildren(...children);
  place.hidden = children.length === 0;
}

function fold(summary, ...children) {
  const made = make("details");
  made.append(make("summary", summary), ...children);
  return made;
}

function head(doc) {
  const lines = [make("h1", doc.title)];
  if (doc.runs.length === 1) {
    const [run] = doc.runs;
    lines.push(make("p", `${run.protocol}, ${run.peers} peers, seed ${run.seed}`, "muted"), make("p", run.told, run.state));
  } else {
    const unfinished = doc.runs.filter((run) => run.state !== "finished");
    if (doc.differing) lines.push(make("p", doc.differing, doc.alike ? "" : "unfinished"));
    lines.push(...unfinished.map((run) => make("p", `${run.label}: ${run.told}`, run.state)));
  }
  fill("head", ...lines);
}

function card(one) {
  const made = make("div", null, "card");
  made.dataset.key = one.key;
  if (one.value !== null) made.dataset.value = one.value;
  made.append(make("span", one.name), make("b", one.shown), make("span", one.note));
  return made;
}

function privacy(proof) {
  const promises = make("ul");
  for (const one of proof.definitions) {
    const item = make("li", `${one.words} (Definition ${one.name})`, { true: "kept", false: "broken", null: "open" }[one.holds]);
    item.append(make("p", one.counted, "muted"));
    promises.append(item);
  }
  const violations = proof.violations.map((line) => make("p", line, "broken"));
  const told = proof.sentences.map((line) => make("p", line, "muted"));
  fill("privacy", make("h2", "Privacy"), make("p", proof.title, `verdict ${proof.verdict}`), promises, ...violations, ...told);
}

// columns: [title, (row) => cell, is it text?]; a cell may be [text, class]. The first of a line names it.
function grid(caption, columns, rows) {
  const line = (cells, tag) => {
    const made = make("tr");
    cells.forEach((cell, at) => {
      const [text, kind] = Array.isArray(cell) ? cell : [cell, ""];
      const one = make(at ? tag : "th", text ?? "–", `${columns[at][2] ? "text" : ""} ${kind}`.trim());
      if (one.tagName === "TH") one.scope = tag === "th" ? "col" : "row";
      made.append(one);
    });
    return made;
  };
  const made = make("table"), parts = [make("thead"), make("tbody")], place = make("div", null, "scroll");
  parts[0].append(line(columns.map(([title]) => title), "th"));
  parts[1].append(...rows.slice(0, MOST_ROWS).map((row) => line(columns.map(([, cell]) => cell(row)), "td")));
  made.append(make("caption", rows.length > MOST_ROWS ? `${caption}: the first ${MOST_ROWS} of ${rows.length}` : caption), ...parts);
  Object.assign(place, { tabIndex: 0, role: "region", ariaLabel: caption }); // what scrolls is scrolled by keys, too
  place.append(made);
  return place;
}

// What a chart's marks say when they are pointed at: a table for each kind of mark.
function numbers(view) {
  const kinds = new Map();
  const gather = (item) => {
    if (item.tooltip instanceof Object) {
      const columns = Object.keys(item.tooltip).join();
      kinds.set(columns, (kinds.get(columns) ?? new Map()).set(JSON.stringify(item.tooltip), item.tooltip));
    }
    item.items?.forEach(gather);
  };
  gather(view.scenegraph().root);
  return [...kinds.values()].map((found) => {
    const rows = [...found.values()].sort((one, other) => one["from (s)"] - other["from (s)"] || 0);
    const names = Object.keys(rows[0]), isText = (name) => rows.every((row) => isNaN(parseFloat(row[name])));
    return grid(names.join(", "), names.map((name) => [name, (row) => [row[name], name === "what" ? "long" : ""], isText(name)]), rows);
  });
}

function bytes(size) {
  const unit = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; Math.abs(size) >= 1000 && at < unit.length - 1; at++) size /= 1000;
  return `${at ? size.toFixed(1) : size} ${unit[at]}`;
}

const fixed = (value, digits, unit = "") => (value === null || value === undefined ? null : value.toFixed(digits) + unit);

function tables(doc) {
  const one = doc.runs.length === 1;
  const [run] = doc.runs;
  const peers = grid("The peers", [["peer", (row) => row.peer, true], ["samples", (row) => row.samples],
    [run.figure, (row) => fixed(row.value, 4)], ["sent", (row) => bytes(row.bytes_sent)], ["train", (row) => fixed(row.train_seconds, 1, " s")],
    ["communicate", (row) => fixed(row.communicate_seconds, 1, " s")], ["starts", (row) => row.starts]], doc.tables.peers);
  fill("peers", ...(one ? [peers] : []));
  fill("made", grid("What was run", [["what", (name) => name, true],
    ...doc.runs.map((each) => [each.label, (name) => [each.made[name], "long"], true])], Object.keys(run.made)),
    ...doc.runs.filter((each) => each.settings).map((each) => fold(`All settings of ${each.label}, as its federation.yaml`, make("pre", each.settings))));
  fill("runs", ...(one ? [] : [compare(doc)]));
}

// The runs beside each other: the best of each column in bold, where like is compared with like.
function compare(doc) {
  const keys = [...new Set(doc.runs.flatMap((run) => run.cards.map((one) => one.key)))];
  const columns = keys.map((key) => {
    const find = (run) => run.cards.find((one) => one.key === key);
    const found = doc.runs.map(find).filter(Boolean);
    const known = found.map((one) => one.value).filter((value) => value !== null);
    const best = doc.alike && known.length > 1 ? (found[0].better === "up" ? Math.max : Math.min)(...known) : NaN;
    const cell = (one) => one && [one.shown, one.value === best ? "best" : ""];
    return [found[0].name, (run) => cell(find(run))];
  });
  return grid("The runs", [["run", (run) => run.label, true], ["protocol", (run) => run.protocol, true], ["seed", (run) => run.seed],
    ["peers", (run) => run.peers],
    ["rounds", (run) => (run.state === "finished" ? run.completed : `${run.completed} of ${run.rounds}`)], ...columns,
    ["privacy", (run) => (run.privacy ? { kept: "all three met", open: "no violation", broken: "VIOLATION" }[run.privacy.verdict] : null), true]],
    doc.runs);
}

// By the figure's name. A chart that is as it was is given its new rows, which is quicker than to make it again.
const views = new Map();

async function charts(doc) {
  for (const one of figures) {
    const data = Object.fromEntries(one.tables.map((name) => [name, doc.tables[name]]));
    const place = document.querySelector(`#${one.name} .chart`);
    const made = JSON.stringify(one.chart);
    const known = views.get(one.name);
    if (known?.made === made && known.place === place) {
      for (const [name, rows] of Object.entries(data)) known.view.data(name, rows);
      await known.view.runAsync();
      tabulate(place, known.view);
      continue;
    }
    known?.view.finalize();
    views.delete(one.name);
    const chart = { description: `${one.title}. ${one.caption}`, width: "container", autosize: { type: "fit-x", contains: "padding" }, data: { name: one.tables[0] }, ...one.chart, datasets: data };
    // `ast`: expressions are interpreted, as the page's own policy forbids code made of text.
    // Warnings are of empty tables, which are no fault (logLevel 1: errors alone).
    const options = { actions: false, ast: true, renderer: "svg", logLevel: 1, config: look };
    const { view } = await vegaEmbed(place, chart, options);
    view.addEventListener("click", (_, item) => item?.datum?.peer && choose(item.datum.peer));
    // Zooming out ends where all rounds are seen.
    if ("zoom_round" in view.getState().signals) view.addSignalListener("zoom_round", async (_, seen) => {
      const rounds = shown.tables[one.tables[0]].map((row) => row.round);
      if (!seen || seen[1] - seen[0] < Math.max(...rounds) - Math.min(...rounds)) return;
      await view.runAsync(); // what is seen is noted at the end of the present run
      view.data("zoom_store", []).run();
    });
    tabulate(place, view);
    views.set(one.name, { view, made, place });
  }
  if (chosen) choose(chosen);
  document.body.dataset.drawn = "true";
}

function tabulate(place, view) {
  const numbered = place.nextSibling;
  numbered.replaceChildren(...[...numbered.children].slice(0, 2), ...numbers(view));
}

// The peer on which somebody has clicked, in a chart or a list; "" for none.
let chosen = "";
function choose(peer) {
  chosen = peer;
  views.get("accuracy")?.view.signal("chosen", peer).runAsync();
  document.querySelectorAll("[data-peer]").forEach((one) => one.classList.toggle("chosen", one.dataset.peer === peer));
}

// A text that a spreadsheet would run as a formula is made plain.
function cell(value) {
  const text = typeof value === "string" ? value.replace(/^[=+\-@\t\r]/, "'$&") : `${value ?? ""}`;
  return `"${text.replaceAll('"', '""')}"`;
}

function csv(rows) {
  const names = [...new Set(rows.flatMap(Object.keys))];
  return [names.map(cell), ...rows.map((row) => names.map((name) => cell(row[name])))].map((line) => line.join()).join("\r\n");
}

// On white paper, where programs that know no `light-dark` open it.
async function svg(view) {
  const drawn = (await view.toSVG()).replace(/light-dark\(([^,]+), [^)]+\)/g, "$1");
  return `data:image/svg+xml,${encodeURIComponent(drawn.replace(">", "><rect width='100%' height='100%' fill='#fff'/>"))}`;
}

async function png(view) {
  const image = Object.assign(new Image(), { src: await svg(view) });
  await image.decode();
  const canvas = Object.assign(make("canvas"), { width: 2 * image.width, height: 2 * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL();
}

function downloads(one) {
  const offer = { PNG: png, SVG: svg, CSV: async () => `data:text/csv;charset=utf-8,${encodeURIComponent(csv(shown.tables[one.tables[0]]))}` };
  const line = make("p", null, "downloads");
  for (const [kind, made] of Object.entries(offer)) {
    const button = make("button", kind);
    button.ariaLabel = `${one.title} as ${kind}`;
    button.onclick = async () => {
      const href = await made(views.get(one.name).view);
      Object.assign(make("a"), { download: `${one.name}.${kind.toLowerCase()}`, href }).click();
    };
    line.append(button);
  }
  return line;
}

function frame(one) {
  const known = document.getElementById(one.name);
  const made = known ?? make("figure");
  if (!known) made.append(make("h2"), make("figcaption"), make("div", null, "chart"), fold(`${one.title}: numbers, files`, downloads(one)));
  made.id = one.name;
  made.className = one.wide ? "wide" : "";
  made.querySelector("h2").textContent = one.title;
  made.querySelector("figcaption").textContent = one.caption;
  return made;
}

function frames() {
  for (const id of ["first", "second"]) {
    const place = document.getElementById(id);
    const wanted = figures.filter((one) => Boolean(one.late) === (id === "second")).map(frame);
    const same = wanted.length === place.children.length && wanted.every((one, at) => one === place.children[at]);
    if (!same) place.replaceChildren(...wanted);
  }
}

let drawing = Promise.resolve();

// others: the figures of this document, where they are not those that the page came with.
function draw(doc, others) {
  shown = doc;
  document.title = doc.title;
  figures = others ?? figures;
  frames();
  head(doc);
  const [run] = doc.runs;
  const one = doc.runs.length === 1;
  fill("cards", ...(one ? run.cards.map(card) : []));
  fill("notes", ...doc.runs.flatMap((each) => each.notes.map((note) => make("li", one ? note : `${each.label}: ${note}`))));
  if (one && run.privacy) privacy(run.privacy);
  tables(doc);
  drawing = drawing.catch(() => {}).then(() => charts(doc)); // whoever drew the one before is told that it failed
  return drawing;
}

if (shown) draw(shown);
