"use strict";
// Keeps the page as the launcher says that things are (launcher/dashboard/site.py); page.js draws all but the ring.

const MOST_NAMES = 24, MOST_WORDS = 16;
const SILENCE = 30000; // milliseconds: the launcher says something every 10 s
const peers = new Map();
let order = [];
let source = null;
let heard = Date.now();

// The token comes behind the `#`, which browsers send nowhere. It goes from the address, where it would be seen and copied,
// to what this tab keeps for this host and port alone: a cookie would go to every port of the host.
const KEPT = "dfl-token";
if (location.hash) {
  sessionStorage.setItem(KEPT, location.hash.slice(1));
  history.replaceState(null, "", location.pathname);
}
addEventListener("hashchange", () => location.reload());

function shape(tag, marks, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(marks)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function tell(text, kind) {
  const line = document.getElementById("live");
  if (line.textContent !== text) line.textContent = text;
  line.className = kind;
  document.getElementById("now").classList.toggle("lost", kind === "lost");
}

// The empty ring and list, in the order in which the peers sit.
function arrange(news) {
  order = news.order;
  const far = 150, spread = (2 * Math.PI) / order.length;
  const size = Math.max(3, Math.min(24, 0.38 * spread * far));
  const place = (id, radius) => {
    const angle = order.indexOf(id) * spread;
    return [320 + radius * Math.sin(angle), 225 - radius * Math.cos(angle)];
  };
  const broken = new Set(news.broken.map(String));
  const lines = news.pairs.map((pair) => {
    const [[x1, y1], [x2, y2]] = pair.map((id) => place(id, far));
    return shape("line", { x1, y1, x2, y2, class: broken.has(String(pair)) ? "broken" : "" });
  });
  const seats = order.map((id) => {
    const [x, y] = place(id, far), [nameX, nameY] = place(id, far + size + 12);
    const side = Math.abs(nameX - 320) < 20 ? "middle" : nameX > 320 ? "start" : "end";
    const seat = shape("g", { "data-peer": id, tabindex: 0, role: "button" });
    seat.onclick = () => ask(id);
    seat.onkeydown = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      ask(id);
    };
    seat.append(shape("title", {}), shape("circle", { cx: x, cy: y, r: size }));
    if (size >= 8) seat.append(shape("text", { x, y, class: "sign", "font-size": size }));
    if (order.length <= MOST_NAMES) {
      const shift = nameY < 60 ? -14 : nameY > 390 ? 6 : 0; // above and below the ring, not on it
      seat.append(shape("text", { x: nameX, y: nameY + shift, "text-anchor": side }, id));
      const words = { x: nameX, y: nameY + shift + 15, "text-anchor": side, class: "words" };
      if (order.length <= MOST_WORDS) seat.append(shape("text", words));
    }
    return seat;
  });
  const focused = document.activeElement?.closest("#circle g")?.dataset.peer;
  document.getElementById("circle").replaceChildren(...lines, ...seats);
  seats.find((one) => one.dataset.peer === focused)?.focus();
  document.getElementById("now").classList.toggle("many", order.length > MOST_WORDS);
  const rows = order.map((id) => {
    const row = make("tr");
    row.dataset.peer = id;
    row.onclick = () => ask(id);
    row.append(Object.assign(make("th", id, "text"), { scope: "row" }), make("td", null, "text"), make("td"), make("td"), make("td"));
    row.children[1].append(make("span", "", "sign"), make("span", "", "words"));
    return row;
  });
  document.getElementById("doing").replaceChildren(...rows);
  order.forEach((id) => peers.has(id) && seat(peers.get(id)));
  choose(chosen);
}

// A peer that was chosen is shown closer, for as long as the launcher answers; the same once more chooses none.
const ask = (id) => {
  choose(id === chosen ? "" : id);
  document.getElementById("closer").scrollIntoView({ block: "nearest" });
};
const mark = choose;
choose = (id) => {
  mark(id);
  closer();
};

async function closer() {
  const id = chosen, place = document.getElementById("closer"), [name, machine, log] = place.children;
  place.hidden = !id;
  if (place.dataset.of !== id) machine.textContent = log.textContent = "";
  place.dataset.of = id;
  if (!id) return;
  name.textContent = `${id}: ${peers.get(id)?.words ?? ""}`;
  if (!watchman) {
    machine.textContent = "The launcher has ended.";
    return;
  }
  const answer = await fetch(`peers/${encodeURIComponent(id)}`, { headers: pass() }).catch(() => null);
  const told = answer?.ok && (await answer.json().catch(() => null));
  if (!told || id !== chosen) return; // only now: another may have been chosen while the answer came
  machine.textContent = told.machine;
  log.textContent = told.log.join("\n");
}
setInterval(() => watchman && closer(), 2000);

// A chart has a height of its own; on a wall it is as high as the screen leaves room.
const measure = () => document.body.style.setProperty("--zoom", innerHeight / 570);
addEventListener("resize", measure);
measure();

function wall(on) {
  document.body.classList.toggle("wall", on);
  document.getElementById("wall").ariaPressed = on;
  dispatchEvent(new Event("resize")); // charts are as wide as their places
}
document.getElementById("wall").onclick = () => {
  const on = !document.body.classList.contains("wall");
  wall(on);
  (on ? document.documentElement.requestFullscreen() : document.exitFullscreen()).catch(() => {});
};
addEventListener("fullscreenchange", () => document.fullscreenElement || wall(false));

const brief = (words) => (words.length > 24 ? `${words.slice(0, 23)}…` : words);

function seat(one) {
  const [place, row] = document.querySelectorAll(`[data-peer="${CSS.escape(one.peer)}"]`);
  for (const each of [place, row]) each.setAttribute("class", one.peer === chosen ? `${one.tone} chosen` : one.tone);
  place.querySelector("title").textContent = `${one.peer} ${one.words}, round ${one.round}`;
  const put = (found, text) => found && (found.textContent = text);
  for (const each of [place, row]) put(each.querySelector(".sign"), one.sign);
  put(place.querySelector(".words"), brief(one.words));
  put(row.querySelector(".words"), one.words);
  [one.round, one.figure, one.restarts || ""].forEach((text, at) => put(row.children[at + 2], text));
}

function hear(news) {
  for (const one of news.peers ?? []) peers.set(one.peer, one);
  if (news.order) arrange(news);
  else (news.peers ?? []).forEach(seat);
  if (news.said) document.getElementById("said").textContent = news.said;
  if (news.recent) document.getElementById("recent").replaceChildren(...news.recent.map((line) => make("li", line)));
  if (news.title) entitle(news.title);
  if (news.rounds) Object.assign(document.getElementById("progress"), { max: news.rounds[1], value: news.rounds[0] });
}

// What a tab among many shows: rounds, and in red who is in trouble.
let title = "";
function entitle(text = title) {
  title = text;
  document.title = title;
  const colour = title.includes("·") ? "%23b03a00" : "%2300694d";
  const drawn = `<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'><circle cx='4' cy='4' r='4' fill='${colour}'/></svg>`;
  const icon = document.querySelector("link[rel=icon]") ?? document.head.appendChild(make("link"));
  Object.assign(icon, { rel: "icon", href: `data:image/svg+xml,${drawn}` });
}

// While one document is drawn only the newest of those that come is kept.
let waiting = null, busy = false;
async function renew(next) {
  waiting = next;
  if (busy) return;
  busy = true;
  const { document: doc, figures: charts } = waiting;
  waiting = null;
  try {
    await draw(doc, charts);
    entitle();
    document.getElementById("figure-name").textContent = doc.runs[0].figure;
    document.body.dataset.round = doc.runs[0].completed;
  } finally {
    busy = false;
    if (waiting) renew(waiting);
  }
}

const take = { now: hear, document: renew, beat: () => {}, ended: ({ said }) => end(said, "over") };

function end(said, kind) {
  clearInterval(watchman);
  watchman = null;
  tell(said, kind);
}

const pass = () => ({ Authorization: `Bearer ${sessionStorage.getItem(KEPT) ?? ""}` });

// Read by hand: an EventSource sends no headers, and what stands in an address is written into logs.
async function connect() {
  source?.abort();
  const { signal } = (source = new AbortController());
  const lost = () => null; // the network, or `abort`
  const answer = await fetch("events", { headers: pass(), signal }).catch(lost);
  if (answer?.status === 403 || answer?.status === 421) {
    end("Access denied: open the full address that the launcher printed last, token included.", "lost");
    return;
  }
  const reader = answer?.ok && answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = "", read; reader && (read = await reader.read().catch(lost)) && !read.done; ) {
    const messages = (text + read.value).split("\n\n");
    text = messages.pop();
    for (const message of messages) {
      const [, name, data] = message.match(/^event: (.*)\ndata: (.*)$/);
      heard = Date.now();
      if (name !== "ended") tell("Live.", "on");
      take[name](JSON.parse(data));
    }
  }
  if (signal.aborted || watchman === null) return;
  tell("Connection to the launcher lost. The data shown is stale; reconnecting.", "lost");
  setTimeout(() => signal.aborted || connect(), 3000);
}

let watchman = setInterval(() => {
  if (Date.now() - heard < SILENCE) return;
  tell("No update from the launcher. The data shown may be stale; reconnecting.", "lost");
  heard = Date.now();
  connect();
}, 5000);

connect();
