// Tables that are cards on a phone. Their roles are said, since browsers forget them where a table is not laid out as one.

import { h } from "./dom.js";
import { clock, count, here, iso } from "./words.js";

/** `columns` are headings, those of numbers with a trailing "#"; `rows` have a key and cells, the first of which names it,
 * and an id where other rows point to them. */
export function table(caption, columns, rows) {
  const heads = columns.map((each) => ({ label: each.replace(/#$/, ""), kind: each.endsWith("#") ? "n" : null }));
  return h("div", { class: "scroll" }, h(
    "table",
    { role: "table" },
    h("caption", {}, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map(({ label, kind }) => h("th", { scope: "col", role: "columnheader", class: kind }, label)))),
    h("tbody", { role: "rowgroup" }, rows.map(({ key, cells, id = null }) => h("tr", { role: "row", key, id, tabindex: id && "-1" }, cells.map((cell, at) => one(cell, at, heads[at]))))),
  ));
}

function one(cell, at, { label, kind }) {
  if (at === 0) return h("th", { scope: "row", role: "rowheader", class: kind }, cell);
  const empty = cell === "" || cell === null || cell === undefined || (Array.isArray(cell) && cell.length === 0);
  return h("td", { role: "cell", class: [kind, empty && "empty"].filter(Boolean).join(" ") || null, "data-label": label }, h("span", {}, cell));
}

/** The name of something: never broken where there is room for it. */
export function name(text) {
  return h("span", { class: "name" }, text);
}

/** A name that leads to its row, as `id` made of the same words has it. */
export function link(kind, text) {
  return h("a", { class: "name", href: `#${encodeURIComponent(id(kind, text))}` }, text);
}

export function id(kind, text) {
  return `${kind}-${text}`;
}

/** How much of something is taken: a bar and the number. */
export function bar(what, part, words) {
  return h("span", { class: "fill" },
    h("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": `${what}: ${words}` },
      h("rect", { class: "room", width: 100, height: 10 }), h("rect", { class: part > 0.9 ? "taken most" : "taken", width: 100 * Math.min(1, part), height: 10 })),
    h("span", { "aria-hidden": "true" }, words));
}

/** Several sentences; one stands for itself. */
export function list(sentences) {
  return sentences.length > 1 ? h("ul", {}, sentences.map((each) => h("li", {}, each))) : sentences;
}

export function more(number, what, path) {
  return number > 0 && h("p", { class: "soft" }, `… and ${count(number)} more ${what}`, path && [", at ", h("code", {}, path)]);
}

export function when(epochSeconds) {
  return h("time", { datetime: iso(epochSeconds), title: here(epochSeconds) }, clock(epochSeconds));
}

export function figures(pairs) {
  return h("dl", { class: "figures" }, pairs.filter((each) => each !== null).map(([term, value, kind = null]) => h("div", { key: term }, h("dt", {}, term), h("dd", { class: kind }, value))));
}
