// What rounds of planning cost, as bars: what is proven to be the least, and what is open above it. Beside it stands a table
// with the same numbers, which is what screen readers are pointed to.

import { h } from "./dom.js";
import { clock, count, dollars, percent } from "./words.js";

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
    h("text", { x: LEFT - 6, y: y(cost) + 4, "text-anchor": "end" }, dollars(cost)),
  ]);
  parts.push(h("text", { x: 0, y: 11 }, "$ an hour"));
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
  parts.push(h("text", { x: LEFT, y: end - 3 }, clock(points[0].atSeconds)));
  if (points.length > 1) parts.push(h("text", { x: width, y: end - 3, "text-anchor": "end" }, clock(points.at(-1).atSeconds)));
  return h(
    "svg",
    { class: "chart", viewBox: `0 0 ${width} ${end}`, role: "img", "aria-labelledby": `${id}-title`, "aria-describedby": `${id}-words` },
    h("title", { id: `${id}-title` }, proven ? "Cost, bound and gap over time" : "Cost over time"),
    h("desc", { id: `${id}-words` }, inWords(points)),
    parts,
  );
}

function inWords(points) {
  const costs = points.map((each) => each.cost);
  const last = points.at(-1);
  const bound = last.bound === null ? "" : `, at least ${dollars(last.bound)}${last.gap === null ? "" : `, gap ${percent(last.gap)}`}`;
  return `${count(points.length)} from ${clock(points[0].atSeconds)} to ${clock(last.atSeconds)}: between ${dollars(Math.min(...costs))} and ${dollars(Math.max(...costs))}; the last ${dollars(last.cost)}${bound}. The table has all of them.`;
}

/** The next number that reads well at the end of an axis. */
function nice(number) {
  if (!(number > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 4, 5, 8, 10].map((each) => each * power).find((each) => each >= number);
}
