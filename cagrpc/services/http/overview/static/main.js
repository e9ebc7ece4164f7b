// Brings together what the server tells, what is shown of it, and what is said to those who listen to the page.

import { h, show } from "./dom.js";
import { Feed } from "./feed.js";
import { headline, SECTIONS } from "./sections.js";
import { clock, several } from "./words.js";

const SPOKEN_MS = 20000; // between two sentences of news
const WIDE = 960;
const NARROW = 360;

const at = (id) => document.getElementById(id);
const told = {};
const stale = new Set();
const narrow = window.matchMedia("(max-width: 44rem)");
let drawing = false;
let since = null; // the connection was lost

function draw() {
  drawing = false;
  const width = narrow.matches ? NARROW : WIDE;
  for (const [id, [made, names]] of Object.entries(SECTIONS)) {
    if (!names.some((name) => stale.has(name)) || !names.every((name) => name in told)) continue;
    const problem = names.map((name) => told[name].problem).find((each) => each);
    let content;
    try {
      content = problem ? h("p", { class: "bad" }, problem) : made(told, width);
    } catch (error) {
      console.error(error);
      content = h("p", { class: "bad" }, "This cannot be shown; the console of the browser has the reason.");
    }
    show(at(`${id}-content`), content ?? [], at(content === null ? "now-heading" : `${id}-heading`));
    at(id).hidden = content === null; // what has nothing to show is not there, and no link leads to it
    document.querySelector(`#sections a[href="#${id}"]`).parentElement.hidden = content === null;
  }
  stale.clear();
  filter();
  if (["status", "fleet", "waiting", "consolidation"].every((name) => name in told && !told[name].problem)) news(headline(told));
}

let version = null; // of these files, by the server that they came from

function section(name, data) {
  if (name === "page") {
    if (version !== null && version !== data.version) location.reload(); // the server is another one, with other files
    version = data.version;
    return;
  }
  told[name] = data;
  stale.add(name);
  at("shown").hidden = at("sections").hidden = at("search").hidden = false;
  if (!drawing) {
    drawing = true;
    requestAnimationFrame(draw);
  }
}

// What is announced is one sentence, when it changes, and then not again for a while.
let spoken = "";
let waits = "";
let silent = null;

function news(sentence) {
  document.title = `cagrpc: ${sentence[0].toLowerCase()}${sentence.slice(1, -1)}`;
  if (sentence === (waits || spoken)) return;
  waits = sentence;
  if (silent === null) speak();
}

function speak() {
  silent = null;
  if (!waits) return;
  [spoken, waits] = [waits, ""];
  at("news").textContent = spoken;
  silent = setTimeout(speak, SPOKEN_MS);
}

const SHOWN = { live: "live", lost: "lost", paused: "", refused: "lost" };

function state(kind, text) {
  const place = at("connection");
  const before = place.className;
  since = kind === "live" ? null : (since ?? Date.now() / 1000);
  place.className = SHOWN[kind];
  place.textContent = { live: "Live", paused: "Paused", refused: "Not connected", lost: `Not connected since ${clock(since ?? 0)}: ${text}. Trying again.` }[kind];
  if (kind !== "paused" && before !== place.className) at("news").textContent = place.textContent;
  at("forget").hidden = kind === "refused" || feed.token === "";
  ask(kind === "refused", text);
}

function ask(needed, why) {
  const asked = !at("access").hidden;
  at("access").hidden = !needed;
  if (needed) {
    at("refusal").textContent = why; // an alert, so it is said
    at("token").value = "";
    at("token").focus();
  } else if (asked) {
    at("main").focus();
  }
}

const feed = new Feed({ section, state });

at("access-form").addEventListener("submit", (event) => {
  event.preventDefault();
  feed.use(at("token").value.trim());
});
at("forget").addEventListener("click", () => {
  for (const name of Object.keys(told)) delete told[name];
  at("shown").hidden = at("sections").hidden = at("search").hidden = true;
  feed.use("");
});
narrow.addEventListener("change", () => {
  for (const name of Object.keys(told)) stale.add(name);
  draw();
});

// Search: of tables and the log, what has none of the words is not shown.
function filter() {
  const words = at("find").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const each of document.querySelectorAll("#shown tbody tr, #shown ol.log li")) {
    const text = each.textContent.toLowerCase();
    each.hidden = !words.every((word) => text.includes(word));
    if (!each.hidden) found += 1;
  }
  at("found").textContent = words.length > 0 ? `${several(found, "row")}` : "";
}

at("find").addEventListener("input", filter);
at("search").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    at("find").focus();
  }
});

// A link to a row shows it, also where it is folded or was not searched for, and puts the focus there.
window.addEventListener("hashchange", () => {
  const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (row === null || row.tagName !== "TR") return; // the browser itself leads to a section
  at("find").value = "";
  filter();
  row.closest("details")?.setAttribute("open", "");
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "center" });
});

feed.run();
