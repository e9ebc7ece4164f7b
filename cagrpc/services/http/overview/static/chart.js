// Charts. What rounds of planning cost, as bars: what is proven to be the least, and what is open above it; beside it stands
// a table with the same numbers, which is what screen readers are pointed to. And how something went over a day, as a line.

import { h } from "./dom.js";
import { clock, count, minute, percent } from "./words.js";

const TOP = 26;
const HEIGHT = 150; // of costs
const GAPS = 46; // of gaps
const LEFT = 62;

/** `points` have atSeconds, cost, bound and gap; bound and gap are null where nothing is proven. Oldest first. */
export function chart(id, points, width) {
  const highest = nice(Math.max(...points.map((each) => each.cost), 0));
  const widest = Math.max(...points.map((each) => each.gap ?? 0), 0);
  const proven = points.some((each) => each.bound !== null);
  const gaps = widest > 0;
  const step = (width - LEFT) / points.length;
  const bar = Math.max(2, Math.min(28, step - 2));
  const y = (cost) => TOP + HEIGHT * (1 - cost / highest);
  const bottom = TOP + HEIGHT;
  const second = bottom + 30;
  const end = gaps ? second + GAPS + 20 : bottom + 20;
  const parts = [0, highest / 2, highest].map((cost) => [
    h("line", { x1: LEFT, x2: width, y1: y(cost), y2: y(cost) }),
    h("text", { x: LEFT - 6, y: y(cost) + 4, "text-anchor": "end" }, `$${cost}`),
  ]);
  parts.push(h("text", { x: 0, y: 11 }, "$/h"));
  points.forEach((each, index) => {
    const x = LEFT + index * step + (step - bar) / 2;
    const bound = Math.min(each.bound ?? each.cost, each.cost);
    parts.push(h("rect", { class: "proven", x, width: bar, y: y(bound), height: bottom - y(bound) }));
    if (each.cost > bound) parts.push(h("rect", { class: "open", x, width: bar, y: y(each.cost), height: Math.max(1, y(bound) - y(each.cost)) }));
    if (each.gap !== null && gaps) {
      parts.push(h("circle", { class: "open", cx: x + bar / 2, cy: second + GAPS * (1 - each.gap / widest), r: 2.5 }));
    }
  });
  if (gaps) {
    parts.push(
      h("text", { x: 0, y: second - 8 }, "gap"),
      h("line", { x1: LEFT, x2: width, y1: second + GAPS, y2: second + GAPS }),
      h("text", { x: LEFT - 6, y: second + GAPS + 4, "text-anchor": "end" }, "0"),
      h("text", { x: LEFT - 6, y: second + 4, "text-anchor": "end" }, percent(widest)),
    );
  }
  const every = Math.ceil(68 / step);
  points.forEach((each, index) => {
    if (index % every === 0) parts.push(h("text", { x: LEFT + index * step + step / 2, y: end - 3, "text-anchor": "middle" }, clock(each.atSeconds).slice(-9)));
  });
  return h(
    "svg",
    { class: "chart", viewBox: `0 0 ${width} ${end}`, role: "img", "aria-labelledby": `${id}-title`, "aria-describedby": `${id}-words` },
    h("title", { id: `${id}-title` }, proven ? "Cost, bound and gap over time" : "Cost over time"),
    h("desc", { id: `${id}-words` }, inWords(points)),
    parts,
  );
}

function inWords(points) {
  const last = points.at(-1);
  const bound = last.bound === null ? "" : `, at least ${last.boundSaid}${last.gap === null ? "" : `, gap ${percent(last.gap)}`}`;
  return `${count(points.length)} from ${clock(points[0].atSeconds)} to ${clock(last.atSeconds)}; the last ${last.said}${bound}. The table has all of them.`;
}

const TICKS = [60, 120, 300, 600, 1800, 3600, 7200, 14400]; // seconds between two times at the foot

/** One line over time, `points` as pairs of seconds and a number. */
export function line(id, title, unit, points, width) {
  const [first, last] = [points[0][0], points.at(-1)[0]];
  const highest = nice(Math.max(...points.map(([, value]) => value)));
  const height = 64;
  const x = (at) => LEFT + ((width - LEFT - 8) * (at - first)) / Math.max(1, last - first);
  const y = (value) => 20 + height * (1 - value / highest);
  const tick = TICKS.find((each) => (last - first) / each <= width / 110) ?? 4 * 3600;
  const parts = [0, highest].map((value) => [
    h("line", { x1: LEFT, x2: width - 8, y1: y(value), y2: y(value) }),
    h("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, `${unit}${count(value)}`),
  ]);
  parts.push(h("text", { x: 0, y: 10 }, title));
  for (let at = Math.ceil(first / tick) * tick; at <= last; at += tick) {
    parts.push(h("line", { class: "tick", x1: x(at), x2: x(at), y1: y(0), y2: y(0) + 5 }), h("text", { x: x(at), y: y(0) + 17, "text-anchor": "middle" }, minute(at)));
  }
  const steps = points.map(([at, value], index) => `${index === 0 ? "M" : `H${x(at).toFixed(1)}V`}${index === 0 ? `${x(at).toFixed(1)} ` : ""}${y(value).toFixed(1)}`).join("");
  parts.push(h("path", { class: "run", d: steps }));
  const values = points.map(([, value]) => value);
  const said = `${title}, from ${clock(first)} to ${clock(last)}: between ${unit}${count(Math.min(...values))} and ${unit}${count(Math.max(...values))}, at last ${unit}${count(values.at(-1))}.`;
  return h("svg", { class: "chart", key: id, viewBox: `0 0 ${width} ${height + 42}`, role: "img", "aria-label": said }, parts);
}

/** Nodes as cells, the fullest first; `cells` has a digit for each, tenths that are taken. */
export function cells(digits, said) {
  const row = 40;
  const rows = Math.ceil(digits.length / row);
  const drawn = [...digits].map((digit, at) => h("rect", { class: "node", x: 11 * (at % row), y: 15 * Math.floor(at / row), width: 9, height: 13, "fill-opacity": 0.12 + 0.1 * (Number(digit) - 0.2) }));
  return h("svg", { class: "cells", viewBox: `0 0 ${11 * Math.min(row, digits.length)} ${15 * rows}`, width: 11 * Math.min(row, digits.length), height: 15 * rows, role: "img", "aria-label": said }, drawn);
}

/** The next number that reads well at the end of an axis. */
function nice(number) {
  if (!(number > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 4, 5, 8, 10].map((each) => each * power).find((each) => each >= number);
}
