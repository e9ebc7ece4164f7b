// From what the server tells to what is shown, section by section. Pure: each is a function of what was told last, and
// null where there is nothing to show. Money comes as it is said: the server rounds it, in one place for all that it says.

import { cells, chart, line } from "./chart.js";
import { h } from "./dom.js";
import { bar, figures, id, link, list, more, name, table, when } from "./tables.js";
import { count, percent, seconds, several, share } from "./words.js";

const deltasOf = (deltas, left) => [...Object.entries(deltas).flatMap(([group, delta], at) => [at > 0 && ", ", h("span", { class: "name" }, link("group", group), ` +${delta}`)]), left > 0 && `, ${left} more`];
const inFlight = ({ in_flight: rows = [], in_flight_left_out: left = 0 }) => rows.length + left;
const needing = ({ unplaced = [], left_out_pods: left = 0, gangs = [], gangs_left_out_pods: more = 0 }) => left + more + unplaced.reduce((sum, each) => sum + each.count, 0) + gangs.reduce((sum, each) => sum + each.pods, 0);

function now(told) {
  const { status, fleet, increments, consolidation: { plan } } = told;
  return [
    h("p", { class: status.ready ? "lead" : "lead bad" }, headline(told)),
    status.demonstration && h("p", { class: "note" }, `This is ${status.demonstration}.${status.scene ? ` Just now: ${status.scene}.` : ""}`),
    figures([
      ["state", status.ready ? "ready" : "not ready", status.ready ? "good" : "bad"],
      status.waiting_pods === undefined ? null : ["pods pending", count(status.waiting_pods)],
      status.expected_pods > 0 ? ["pods to come", count(status.expected_pods)] : null,
      ["nodes", count(fleet.target_size ?? 0)],
      ["cost", fleet.cost_usd_per_hour_said ?? ""],
      plan && plan.saving_usd_per_hour > 0 ? ["could be saved", plan.saving_usd_per_hour_said, "good"] : null,
      ["increments in flight", count(inFlight(increments))],
      fleet.failed > 0 ? ["failed instances", count(fleet.failed), "bad"] : null,
    ].filter((each) => each !== null)),
    (status.warnings ?? []).map((each) => h("p", { class: "bad" }, each)),
    status.planner && h("p", { class: "soft" }, `The planner: ${status.planner}.`),
    status.cluster && !status.demonstration && h("p", { class: "soft" }, `Cluster: ${status.cluster}; drive: ${status.drive}.`),
  ];
}

function waiting({ waiting: last }) {
  const { unplaced = [], gangs = [], shortages = [], warnings = [] } = last;
  if (unplaced.length + gangs.length + shortages.length + warnings.length === 0 && !last.limited) return null;
  return [
    h("p", { class: "soft" }, "As of the round of ", when(last.at_seconds), "."),
    unplaced.length > 0 &&
      table("Pods without a place, and the smallest changes that would serve them", ["Pods like", "Pods#", "Why", "Any of these is enough"], unplaced.map((each) => ({
        key: `${each.example} ${each.gang ?? ""}`,
        cells: [[name(each.example), each.gang && ` (gang ${each.gang})`], count(each.count), list(each.reasons), list(each.ways)],
      }))),
    more(last.left_out, `kinds of pods (${several(last.left_out_pods, "pod")})`, "/plans"),
    gangs.length > 0 && table("Gangs that are not complete", ["Gang", "Pods#", "Needed#"], gangs.map((each) => ({ key: each.gang, cells: [each.gang, count(each.pods), count(each.needed)] }))),
    more(last.gangs_left_out, "gangs", "/plans"),
    shortages.length > 0 &&
      table("Offerings that were short, not tried for a while", ["Offering", "Until", "Cause"], shortages.map((each) => ({ key: each.offering, cells: [each.offering, when(each.until_seconds), each.cause] }))),
    more(last.shortages_left_out, "offerings", "/plans"),
    last.limited && h("p", {}, last.limited),
    warnings.map((each) => h("p", { class: "bad" }, each)),
  ];
}

function increments({ increments: { in_flight: rows, in_flight_left_out: left, finished } }) {
  if (rows.length + finished.length === 0) return null;
  return [
    rows.length > 0 && table("In flight", ["Increment", "Nodes", "Progress", "Waits for", "For", "Cost#", "Gap#", "Since", "At the latest"], rows.map((each) => ({
      key: each.id,
      id: id("increment", each.id),
      cells: [
        h("code", { class: "name" }, each.id),
        deltasOf(each.deltas, each.deltas_left_out),
        [
          h("progress", { max: each.nodes, value: each.nodes_running, "aria-label": `${each.id}: nodes that run` }),
          ` ${each.phase}, ${count(each.nodes_running)} of ${several(each.nodes, "node")}`,
        ],
        each.message,
        [each.requests > 0 ? several(each.requests, "request") : each.pods > 0 ? several(each.pods, "pod") : each.origin, each.pods_like.length > 0 && [", like ", name(each.pods_like[0])]],
        each.cost_usd_per_hour_said,
        percent(each.gap),
        when(each.created_at_seconds),
        when(each.deadline_at_seconds),
      ],
    }))),
    more(left, "in flight", "/increments"),
    finished.length > 0 &&
      table("Finished last", ["Increment", "Nodes", "What became of it", "Why", "Cost#", "Asked"], finished.map((each) => ({
        key: each.id,
        id: id("increment", each.id),
        cells: [h("code", { class: "name" }, each.id), deltasOf(each.deltas, each.deltas_left_out), each.phase, each.message, each.cost_usd_per_hour_said, when(each.created_at_seconds)],
      }))),
  ];
}

const STATES = ["running", "creating", "deleting", "failed"];
const QUARTERS = ["less than a quarter full", "less than half full", "less than three quarters full", "fuller"];
const RESOURCES = { cpu: "CPU", memory: "memory" };
const called = (resource) => RESOURCES[resource] ?? resource;

/** How full the nodes of a group are: a bar for each resource, and a cell for each node. */
function filled(full) {
  if (full === undefined) return "";
  const words = full.quarters.map((each, at) => each > 0 && `${count(each)} ${QUARTERS[at]}`).filter(Boolean).join(", ");
  return [
    h("div", { class: "bars" }, Object.entries(full.used).map(([resource, part]) => h("div", { key: resource }, h("span", { class: "what" }, called(resource)), bar(called(resource), part, share(part))))),
    full.cells ? cells(full.cells, `${several(full.nodes, "node")}: ${words}`) : h("p", { class: "soft" }, words),
  ];
}

function fleet({ fleet: { tiers, groups, groups_left_out: left, groups_without_nodes: empty }, nodes }) {
  if (tiers.length === 0) return null;
  const full = new Map((nodes.groups ?? []).map((each) => [each.id, each]));
  const rows = nodes.nodes ?? [];
  return [
    groups.length > 0 &&
      table("Node groups with nodes", ["Node group", "How full", "Nodes#", "Not running", "At most#", "Weight#", "What", "Cost#"], groups.map((each) => ({
        key: each.id,
        id: id("group", each.id),
        cells: [
          name(each.id),
          filled(full.get(each.id)),
          count(each.target_size),
          STATES.slice(1).filter((state) => each[state] > 0).map((state) => `${count(each[state])} ${state}`).join(", "),
          each.max_size === null ? "" : count(each.max_size),
          count(each.weight),
          [each.provisioner, each.instance_type === each.id ? "" : each.instance_type, each.zone, each.capacity_type].filter(Boolean).join(", "),
          each.cost_usd_per_hour_said,
        ],
      }))),
    more(left, "node groups with nodes", "/nodegroups"),
    full.has("") && h("div", {}, h("p", {}, `${several(full.get("").nodes, "node")} that ${full.get("").nodes === 1 ? "belongs" : "belong"} to no node group of this server:`), filled(full.get(""))),
    rows.length > 0 &&
      h("details", {}, h("summary", {}, nodes.nodes_left_out > 0 ? `The ${count(rows.length)} emptiest nodes` : several(rows.length, "node")),
        table("Nodes, the emptiest first", ["Node", "Node group", "CPU", "Memory", "Others", "Pods#", "Increment", "State"], rows.map((each) => ({
          key: each.name,
          id: id("node", each.name),
          cells: [
            name(each.name),
            each.node_group && link("group", each.node_group),
            ...["cpu", "memory"].map((of) => (each.used[of] === undefined ? "" : bar(called(of), each.used[of], share(each.used[of])))),
            Object.entries(each.used).filter(([of]) => !(of in RESOURCES)).map(([of, part]) => `${of} ${share(part)}`).join(", "),
            count(each.pods),
            each.increment && link("increment", each.increment),
            each.held ? "held until its increment is whole" : each.ready ? "Ready" : "not Ready",
          ],
        }))),
        more(nodes.nodes_left_out, "nodes", "/nodes")),
    table("By weight, the highest first", ["Weight", "Provisioners", "Groups#", "Nodes#", "Running#", "Creating#", "Deleting#", "Failed#", "Cost#"], tiers.map((each) => ({
      key: String(each.weight),
      cells: [
        name(`weight ${each.weight}`),
        [...each.provisioners, ...(each.provisioners_left_out > 0 ? [`${count(each.provisioners_left_out)} more`] : [])].join(", "),
        count(each.groups),
        count(each.target_size),
        ...STATES.map((state) => count(each[state])),
        each.cost_usd_per_hour_said,
      ],
    }))),
    empty > 0 && h("p", { class: "soft" }, `${several(empty, "node group")} ${empty === 1 ? "has" : "have"} no node.`),
  ];
}

const DAY = [["Cost, $/h", "$", 1], ["Nodes", "", 2], ["Pods pending", "", 3]];

function day({ history: { points } }, width) {
  if (points.length < 2) return null;
  return DAY.map(([title, unit, at]) => {
    const known = points.map((each) => [each[0], each[at]]).filter(([, value]) => value !== null); // without a cluster no pods are
    return known.length < 2 ? null : line(`day-${at}`, title, unit, known, width);
  });
}

function log({ log: { lines } }) {
  if (lines.length === 0) return null;
  return h("ol", { class: "log" }, lines.map((each) => h("li", { key: `${each.at_seconds} ${each.text}`, class: each.level === "info" ? null : "bad" },
    when(each.at_seconds), " ", each.text, each.about.increment && [" ", h("a", { href: `#${encodeURIComponent(id("increment", each.about.increment))}`, "aria-label": `to the increment ${each.about.increment}` }, "↗")])));
}

const UNPROVEN = "not proven";

/** The gap of a round, of the pods that it serves. */
function gapOf({ gap, unplaced }) {
  if (gap === null) return UNPROVEN;
  return unplaced === 0 ? percent(gap) : `${gap < 0.00005 ? "none" : percent(gap)} for those served`;
}

function proof(round) {
  const bound = round.lower_bound_per_hour === null ? "with no bound proven yet" : `proven to cost at least ${round.lower_bound_per_hour_said}`;
  const gap = round.gap === null ? "" : ` (gap ${gapOf(round)})`;
  const unproven = round.unserved_unproven > 0 ? `; leaving out ${several(round.unserved_unproven, "pod")} is not proven to be necessary` : "";
  return `${bound}${gap}${unproven}`;
}

function rounds({ rounds: { rounds: all } }, width) {
  if (all.length === 0) return null;
  const last = all.at(-1);
  const points = all.map((each) => ({ atSeconds: each.at_seconds, cost: each.planned_cost_per_hour, said: each.planned_cost_per_hour_said, bound: each.lower_bound_per_hour, boundSaid: each.lower_bound_per_hour_said, gap: each.gap }));
  return [
    h("p", {}, "The last round, at ", when(last.at_seconds), `: ${several(last.pods, "pod")} on ${several(last.nodes, "new node")} for ${last.planned_cost_per_hour_said} (${last.status}), ${proof(last)}.`),
    h("p", { class: "key soft", "aria-hidden": "true" }, h("span", { class: "proven" }), "proven least", h("span", { class: "open" }), "what is open above it"),
    chart("rounds-chart", points, width),
    h("details", {}, h("summary", {}, `The ${several(all.length, "round")} as a table`),
      table("Rounds of planning, newest first", ["At", "Why", "Pods#", "New nodes#", "On existing nodes#", "Without a place#", "Cost#", "At least#", "Gap#", "Took#", "Increments"], all.toReversed().map((each) => ({
        key: each.id,
        cells: [
          when(each.at_seconds), each.why, count(each.pods), count(each.nodes), count(each.on_existing), count(each.unplaced),
          each.planned_cost_per_hour_said, each.lower_bound_per_hour_said || UNPROVEN, gapOf(each), seconds(each.elapsed_seconds),
          each.increments.map((of, at) => [at > 0 && ", ", typeof of === "string" ? of : [link("increment", of.id), ` ${of.phase}`]]),
        ],
      })))),
  ];
}

function decisions({ decisions: { decisions: all }, status }, width) {
  if (all.length === 0) return null;
  const [newest] = all;
  const costs = all.filter((each) => each.cost !== null).reverse().map((each) => ({ atSeconds: each.at_seconds, cost: each.cost, said: each.cost_usd_per_hour_said, bound: null, gap: null }));
  return [
    h("p", {}, "The newest, at ", when(newest.at_seconds), `: ${newest.chosen || "nothing"}; ${newest.reason}.`),
    newest.options.length > 0 &&
      h("details", {}, h("summary", {}, `Its ${several(newest.considered, "option")}`),
        table("Options of the newest decision, best first", ["Node group", "", "Nodes#", "Pods#", "Cost#", "Why"], newest.options.map((each) => ({
          key: each.node_group,
          cells: [
            name(each.node_group), each.node_group === newest.chosen ? "chosen" : each.left_out ? "left out" : "", count(each.node_count),
            each.example ? `${count(each.pods)}, like ${each.example}` : count(each.pods), each.cost_usd_per_hour_said, each.left_out || each.reason,
          ],
        }))),
        more(newest.options_left_out, "options", "/decisions")),
    status.drive !== "plan" && costs.length > 1 && chart("decisions-chart", costs, width),
    table("The last decisions, newest first", ["At", "Chosen", "Nodes#", "Pods#", "Cost#", "Options#", "Ranked by", "Took#", "Why"], all.map((each, at) => ({
      key: `${each.at_seconds} ${all.length - at}`,
      cells: [when(each.at_seconds), each.chosen ? link("group", each.chosen) : "nothing", count(each.nodes), count(each.pods), each.cost_usd_per_hour_said ?? "", count(each.considered), each.ranked_by, seconds(each.elapsed_seconds), each.reason],
    }))),
  ];
}

const BESIDE = (of) => (of === null ? "" : `${of.usd_per_hour_said}, ${several(of.node_count, "node")}${of.unserved > 0 ? `, ${count(of.unserved)} left out` : ""}`);

function episodes({ episodes: { episodes: all } }) {
  if (all.length === 0) return null;
  const [newest] = all;
  return [
    h("p", {}, "The newest, until ", when(newest.closed_at_seconds), ":"),
    list(newest.said),
    table("Pods that waited, newest first; nothing here adds up, as each begins with what really came", ["Since", "Until", "Pods#", "What came", "By the plan", "Saves#", "Better", "Waited#", "By the plan#"], all.map((each) => ({
      key: each.id,
      cells: [
        when(each.opened_at_seconds), when(each.closed_at_seconds), count(each.pods), BESIDE(each.came), BESIDE(each.planned),
        each.saving_usd_per_hour_said ?? "", each.better,
        ...[each.came, each.planned].map((of) => (of === null || of.waited_seconds === null ? "" : seconds(of.waited_seconds))),
      ],
    }))),
  ];
}

function requests({ requests: { requests: all, phases, left_out: left } }) {
  if (all.length === 0) return null;
  return [
    h("p", {}, Object.entries(phases).map(([phase, number]) => `${count(number)} ${phase}`).join(", "), "."),
    table("Newest first", ["Request", "Class", "Phase", "Why", "Pods#", "Cost#", "At least#", "Gap#", "Node groups", "Tries#", "Tried again"], all.map((each) => ({
      key: `${each.namespace}/${each.name}`,
      cells: [
        name(`${each.namespace}/${each.name}`), each.class, each.phase, each.explanation, each.pods === null ? "" : count(each.pods),
        each.cost_per_hour_said ?? "", each.lower_bound_per_hour_said ?? "", percent(each.gap), each.node_groups, each.attempts > 0 ? count(each.attempts) : "", each.retry_at,
      ],
    }))),
    more(left, "requests", "/provisioningrequests"),
  ];
}

const HELD = ["wanted", "held", "pushed_out", "left_over"];
const HELD_HEADINGS = ["Wanted#", "Held#", "Pushed out#", "Left over#"];

function slack({ slack: held }) {
  if (held.targets === undefined) return null;
  return [
    h("p", { class: "soft" }, `Carrier: ${held.carrier || "not known yet"}.`),
    held.not_carried && h("p", { class: "bad" }, held.not_carried),
    table("By target", ["Target", ...HELD_HEADINGS, "Cost#"], held.targets.map((each) => ({ key: each.target, cells: [each.target, ...HELD.map((name) => count(each[name])), each.cost_usd_per_hour_said] }))),
    held.shapes.length > 0 &&
      h("details", {}, h("summary", {}, "Placeholders"),
        table("Placeholders", ["Name", "Requests", ...HELD_HEADINGS, "On nodes#", "Why"], held.shapes.map((each) => ({
          key: each.name,
          cells: [each.name, Object.entries(each.requests).map(([name, amount]) => `${name} ${amount}`).join(", "), ...HELD.map((name) => count(each[name])), count(each.nodes), each.why],
        }))),
        more(held.shapes_left_out, "placeholders", "/slack")),
    held.warnings.map((each) => h("p", { class: "bad" }, each)),
  ];
}

const step = (each) => [
  `${each.reason}: `, each.nodes.map((node, at) => [at > 0 && ", ", link("node", node)]), " go",
  Object.keys(each.new_nodes).length > 0 && [", ", deltasOf(each.new_nodes, 0), " come"],
];

function consolidation({ consolidation: found }) {
  if (found.mode === undefined) return null;
  const { mode, waits_for: waits, held_by: holds, held_by_left_out: left, under_way: present, last, paused, plan } = found;
  return [
    plan && h("p", {}, "As planned at ", when(plan.at_seconds), plan.steps_planned > 0
      ? `: ${plan.cost_usd_per_hour_said} can become ${plan.cost_after_usd_per_hour_said} in ${several(plan.steps_planned, "step")}; it is proven that it cannot cost less than ${plan.least_usd_per_hour_said}.`
      : `: ${plan.cost_usd_per_hour_said}, and no step would save anything now.`),
    h("p", { class: "soft" }, `Mode: ${mode}.`),
    present && h("p", {}, "Under way since ", when(present.created_at_seconds), `: ${present.nodes.join(", ")} (${present.reason}), ${present.phase}${waits ? `; waits for ${waits}` : ""}.`),
    !present && waits && h("p", {}, `No step begins: ${waits}.`),
    paused && h("p", { class: "bad" }, "Paused until ", when(paused.until_seconds), `: ${paused.why}.`),
    plan && plan.steps.length > 0 &&
      table("Steps, in their order", ["Step", "What", "Pods moved#", "Saves#"], plan.steps.filter((each) => typeof each === "object").map((each, at) => ({
        key: `${at} ${each.nodes[0]}`,
        cells: [String(at + 1), step(each), count(each.pods_moved), each.saving_usd_per_hour_said],
      }))),
    plan && more(Math.max(0, plan.steps_planned - 20), "steps", "/consolidation"),
    holds.length > 0 &&
      table("Who holds it up", ["Namespace", "Since", "At the latest", "Pods pending#", "Pods to come#", "Requests#", "Increments#"], holds.map((each) => ({
        key: each.namespace,
        cells: [each.namespace || "not known", when(each.since_seconds), when(each.until_seconds), count(each.pods_waiting), count(each.expected_pods), count(each.requests), count(each.increments)],
      }))),
    more(left, "namespaces", "/consolidation"),
    plan && plan.stays.length > 0 && h("details", {}, h("summary", {}, "Why nodes stay"),
      table("Nodes that stay, by reason", ["Reason", "Nodes#", "For example"], plan.stays.filter((each) => typeof each === "object").map((each) => ({ key: each.reason, cells: [each.reason, count(each.nodes), each.examples[0] ?? ""] })))),
    last && h("p", { class: "soft" }, "The last step, begun at ", when(last.created_at_seconds), `: ${last.nodes.join(", ")} (${last.reason}), ${last.phase}${last.message ? `: ${last.message}` : ""}.`),
  ];
}

/** By the id of the place in the page: what is shown there, and the names of what it is made of. */
export const SECTIONS = {
  now: [now, ["status", "fleet", "increments", "waiting", "consolidation"]],
  waiting: [waiting, ["waiting"]],
  consolidation: [consolidation, ["consolidation"]],
  increments: [increments, ["increments"]],
  fleet: [fleet, ["fleet", "nodes"]],
  day: [day, ["history"]],
  log: [log, ["log"]],
  rounds: [rounds, ["rounds"]],
  decisions: [decisions, ["decisions", "status"]],
  episodes: [episodes, ["episodes"]],
  requests: [requests, ["requests"]],
  slack: [slack, ["slack"]],
};

/** What is to be done, in a sentence. */
export function headline({ status, waiting: last, consolidation: { plan } }) {
  if (!status.ready) return `Not ready: ${status.why_not_ready}.`;
  const saving = plan && plan.saving_usd_per_hour > 0 ? `; ${plan.saving_usd_per_hour_said} could be saved` : "";
  return `${attention(status.waiting_pods ?? 0, last)}${saving}.`;
}

/** Without a round of planning, as with drive: assist, it is not known what pods need. */
function attention(pending, last) {
  if (last.at_seconds === undefined && pending > 0) return `${several(pending, "pod is", "pods are")} pending`;
  const pods = needing(last);
  return pods > 0 ? `${several(pods, "pod")} ${pods === 1 ? "needs" : "need"} attention` : "No pod needs attention";
}
