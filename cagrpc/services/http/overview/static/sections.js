// From what the server tells to what is shown, section by section. Pure: each is a function of what was told last.

import { chart } from "./chart.js";
import { h } from "./dom.js";
import { figures, list, more, none, table, when } from "./tables.js";
import { count, dollars, percent, seconds, several } from "./words.js";

const total = (rows, name) => rows.reduce((sum, each) => sum + each[name], 0);
const groupsOf = (deltas, left) => [...Object.entries(deltas).map(([group, delta]) => `${group} +${delta}`), ...(left > 0 ? [`${left} more`] : [])].join(", ");
const inFlight = ({ in_flight: rows = [], in_flight_left_out: left = 0 }) => rows.length + left;

function now({ status, fleet, increments }) {
  const tiers = fleet.tiers ?? [];
  const failed = total(tiers, "failed");
  return [
    status.demonstration && h("p", { class: "note" }, `This is ${status.demonstration}.${status.scene ? ` Just now: ${status.scene}.` : ""}`),
    figures([
      ["state", status.ready ? "ready" : "not ready", status.ready ? "good" : "bad"],
      ["pods wait", status.waiting_pods === undefined ? null : count(status.waiting_pods)],
      ["expected pods", count(status.expected_pods ?? 0)],
      ["nodes", count(total(tiers, "target_size"))],
      ["$ an hour", dollars(total(tiers, "cost_usd_per_hour"))],
      ["increments in flight", count(inFlight(increments))],
      failed > 0 ? ["failed instances", count(failed), "bad"] : null,
    ].filter((each) => each !== null && each[1] !== null)),
    !status.ready && h("p", { class: "bad" }, status.why_not_ready),
    status.planner && h("p", {}, `The planner: ${status.planner}.`),
    status.cluster && h("p", { class: "soft" }, `Cluster: ${status.cluster}; drive: ${status.drive}.`),
    (status.warnings ?? []).map((each) => h("p", { class: "bad" }, each)),
  ];
}

function waiting({ waiting: last, status }) {
  if (last.at_seconds === undefined) {
    return none(status.drive === "plan" ? "No round was planned yet." : "With drive: assist the cluster-autoscaler says why pods wait; the newest decision says which options were left out.");
  }
  const { unplaced, gangs, shortages, warnings } = last;
  return [
    h("p", { class: "soft" }, "As of the round of ", when(last.at_seconds), "."),
    unplaced.length === 0 && gangs.length === 0 && h("p", {}, "Every pod that waited has a place in the plan."),
    unplaced.length > 0 &&
      table("Pods without a place, and the smallest changes that would serve them", ["Pods like", "Pods#", "Why", "Each of these is enough"], unplaced.map((each) => ({
        key: `${each.example} ${each.gang ?? ""}`,
        cells: [each.gang ? `${each.example} (gang ${each.gang})` : each.example, count(each.count), list(each.reasons), list(each.ways)],
      }))),
    more(last.left_out, `kinds of pods (${several(last.left_out_pods, "pod")})`, "/plans"),
    gangs.length > 0 && table("Gangs that are not complete", ["Gang", "Pods#", "Needed#"], gangs.map((each) => ({ key: each.gang, cells: [each.gang, count(each.pods), count(each.needed)] }))),
    more(last.gangs_left_out, "gangs", "/plans"),
    shortages.length > 0 &&
      table("Short, and left out for a while", ["Offering", "Until", "What was said"], shortages.map((each) => ({ key: each.offering, cells: [each.offering, when(each.until_seconds), each.cause] }))),
    more(last.shortages_left_out, "offerings", "/plans"),
    last.limited && h("p", {}, last.limited),
    warnings.map((each) => h("p", { class: "bad" }, each)),
  ];
}

function increments({ increments: { in_flight: rows, in_flight_left_out: left, finished } }) {
  return [
    rows.length === 0 ? none("None is in flight.") : table("In flight", ["Increment", "Progress", "Waits for", "For", "$/h#", "Gap#", "Since", "Until at most"], rows.map((each) => ({
      key: each.id,
      cells: [
        [h("code", {}, each.id), " ", groupsOf(each.deltas, each.deltas_left_out)],
        [
          h("progress", { max: each.nodes, value: each.nodes_running, "aria-label": `${each.id}: nodes that run` }),
          ` ${each.phase}, ${count(each.nodes_running)} of ${several(each.nodes, "node")}`,
        ],
        each.message,
        [each.requests > 0 ? several(each.requests, "request") : each.pods > 0 ? several(each.pods, "pod") : each.origin],
        dollars(each.cost_usd_per_hour),
        percent(each.gap),
        when(each.created_at_seconds),
        when(each.deadline_at_seconds),
      ],
    }))),
    more(left, "in flight", "/increments"),
    finished.length > 0 &&
      table("Finished last", ["Increment", "What became of it", "Why", "$/h#", "Asked"], finished.map((each) => ({
        key: each.id,
        cells: [[h("code", {}, each.id), " ", groupsOf(each.deltas, each.deltas_left_out)], each.phase, each.message || each.reason, dollars(each.cost_usd_per_hour), when(each.created_at_seconds)],
      }))),
  ];
}

const STATES = ["running", "creating", "deleting", "failed"];

function fleet({ fleet: { tiers, groups, groups_left_out: left, groups_without_nodes: empty } }) {
  if (tiers.length === 0) return none("This server serves no node groups: it does not lead, or has none.");
  return [
    table("By weight, tried from above", ["Weight", "Provisioners", "Groups#", "Nodes#", "Running#", "Creating#", "Deleting#", "Failed#", "$/h#"], tiers.map((each) => ({
      key: String(each.weight),
      cells: [
        `weight ${each.weight}`,
        [...each.provisioners, ...(each.provisioners_left_out > 0 ? [`${count(each.provisioners_left_out)} more`] : [])].join(", "),
        count(each.groups),
        count(each.target_size),
        ...STATES.map((state) => count(each[state])),
        dollars(each.cost_usd_per_hour),
      ],
    }))),
    groups.length > 0 &&
      table("Node groups with nodes", ["Node group", "Weight#", "What", "Nodes#", "At most#", "Running#", "Creating#", "Deleting#", "Failed#", "$/h#"], groups.map((each) => ({
        key: each.id,
        cells: [
          each.id,
          count(each.weight),
          [each.instance_type === each.id ? "" : each.instance_type, each.zone, each.capacity_type].filter(Boolean).join(", "),
          count(each.target_size),
          each.max_size === null ? "" : count(each.max_size),
          ...STATES.map((state) => (each[state] > 0 ? count(each[state]) : "")),
          dollars(each.cost_usd_per_hour),
        ],
      }))),
    more(left, "node groups with nodes", "/nodegroups"),
    empty > 0 && h("p", { class: "soft" }, `${several(empty, "node group")} ${empty === 1 ? "has" : "have"} no node.`),
  ];
}

const UNPROVEN = "not proven";

/** The gap of a round, of the pods that it serves. */
function gapOf({ gap, unplaced }) {
  if (gap === null) return UNPROVEN;
  return unplaced === 0 ? percent(gap) : `${gap < 0.00005 ? "none" : percent(gap)} for those served`;
}

function proof(round) {
  const bound = round.lower_bound_per_hour === null ? "with no bound proven yet" : `proven to cost at least ${dollars(round.lower_bound_per_hour)}`;
  const gap = round.gap === null ? "" : ` (gap ${gapOf(round)})`;
  const unproven = round.unserved_unproven > 0 ? `; leaving out ${several(round.unserved_unproven, "pod")} is not proven to be necessary` : "";
  return `${bound}${gap}${unproven}`;
}

function rounds({ rounds: { rounds: all }, status }, width) {
  if (all.length === 0) return none(status.drive === "plan" ? "No round was planned yet." : "With drive: assist there are decisions, below, and no rounds of planning.");
  const last = all.at(-1);
  const points = all.map((each) => ({ atSeconds: each.at_seconds, cost: each.planned_cost_per_hour, bound: each.lower_bound_per_hour, gap: each.gap }));
  return [
    h("p", {}, "The last round, at ", when(last.at_seconds), `: ${several(last.pods, "pod")} on ${several(last.nodes, "new node")} for ${dollars(last.planned_cost_per_hour)} an hour (${last.status}), ${proof(last)}.`),
    h("p", { class: "key soft", "aria-hidden": "true" }, h("span", { class: "proven" }), "proven least", h("span", { class: "open" }), "what is open above it"),
    chart("rounds-chart", points, width),
    h("details", {}, h("summary", {}, `The ${several(all.length, "round")} as a table`),
      table("Rounds of planning, newest first", ["At", "Why", "Pods#", "New nodes#", "On others#", "Without#", "$/h#", "At least#", "Gap#", "Took#", "Increments"], all.toReversed().map((each) => ({
        key: each.id,
        cells: [
          when(each.at_seconds), each.why, count(each.pods), count(each.nodes), count(each.on_existing), count(each.unplaced),
          dollars(each.planned_cost_per_hour), dollars(each.lower_bound_per_hour) || UNPROVEN, gapOf(each), seconds(each.elapsed_seconds),
          Object.entries(each.increments).map(([phase, number]) => `${count(number)} ${phase}`).join(", "),
        ],
      })))),
  ];
}

function decisions({ decisions: { decisions: all }, status }, width) {
  if (all.length === 0) return none("The cluster-autoscaler has not asked yet.");
  const [newest] = all;
  const costs = all.filter((each) => each.cost_usd_per_hour !== null).reverse().map((each) => ({ atSeconds: each.at_seconds, cost: each.cost_usd_per_hour, bound: null, gap: null }));
  return [
    h("p", {}, "The newest, at ", when(newest.at_seconds), `: ${newest.chosen || "nothing"}; ${newest.reason}.`),
    newest.options.length > 0 &&
      h("details", {}, h("summary", {}, `Its ${several(newest.considered, "option")}`),
        table("Options of the newest decision, best first", ["Node group", "", "Nodes#", "Pods#", "$/h#", "Why"], newest.options.map((each) => ({
          key: each.node_group,
          cells: [
            each.node_group, each.node_group === newest.chosen ? "chosen" : each.left_out ? "left out" : "", count(each.node_count),
            each.example ? `${count(each.pods)}, like ${each.example}` : count(each.pods), dollars(each.cost_usd_per_hour), each.left_out || each.reason,
          ],
        }))),
        more(newest.options_left_out, "options", "/decisions")),
    status.drive !== "plan" && costs.length > 1 && chart("decisions-chart", costs, width),
    table("The last decisions, newest first", ["At", "Chosen", "Nodes#", "Pods#", "$/h#", "Options#", "Ranked by", "Took#", "Why"], all.map((each, at) => ({
      key: `${each.at_seconds} ${all.length - at}`,
      cells: [when(each.at_seconds), each.chosen || "nothing", count(each.nodes), count(each.pods), dollars(each.cost_usd_per_hour), count(each.considered), each.ranked_by, seconds(each.elapsed_seconds), each.reason],
    }))),
  ];
}

const BESIDE = (of) => (of === null ? "" : `${dollars(of.usd_per_hour)}, ${several(of.node_count, "node")}${of.unserved > 0 ? `, ${count(of.unserved)} left out` : ""}`);

function episodes({ episodes: { episodes: all } }) {
  if (all.length === 0) return none("Nothing is compared: the expander is not in shadow, has no cluster, or no pods have waited and got their nodes yet.");
  const [newest] = all;
  return [
    h("p", {}, "The newest, until ", when(newest.closed_at_seconds), ":"),
    list(newest.said),
    table("Pods that waited, newest first; nothing here adds up, as each begins with what really came", ["Since", "Until", "Pods#", "What came ($/h)", "By the plan ($/h)", "Saves ($/h)#", "Better", "Waited#", "By the plan#"], all.map((each) => ({
      key: each.id,
      cells: [
        when(each.opened_at_seconds), when(each.closed_at_seconds), count(each.pods), BESIDE(each.came), BESIDE(each.planned),
        each.saving_usd_per_hour === null ? "" : dollars(each.saving_usd_per_hour), each.better,
        ...[each.came, each.planned].map((of) => (of === null || of.waited_seconds === null ? "" : seconds(of.waited_seconds))),
      ],
    }))),
  ];
}

function requests({ requests: { requests: all, phases, left_out: left } }) {
  if (all.length === 0) return none("There are none that this server serves.");
  return [
    h("p", {}, Object.entries(phases).map(([phase, number]) => `${count(number)} ${phase}`).join(", "), "."),
    table("Newest first", ["Request", "Class", "Phase", "Why", "Pods#", "$/h#", "At least#", "Gap#", "Node groups", "Tries#", "Tried again"], all.map((each) => ({
      key: `${each.namespace}/${each.name}`,
      cells: [
        `${each.namespace}/${each.name}`, each.class, each.phase, each.explanation, each.pods === null ? "" : count(each.pods),
        each.cost_per_hour, each.lower_bound_per_hour, each.gap, each.node_groups, each.attempts > 0 ? count(each.attempts) : "", each.retry_at,
      ],
    }))),
    more(left, "requests", "/provisioningrequests"),
  ];
}

const HELD = ["wanted", "held", "pushed_out", "left_over"];
const HELD_HEADINGS = ["Wanted#", "Held#", "Pushed out#", "Left over#"];

function slack({ slack: held }) {
  if (held.targets === undefined) return none("No slack is held: there is none in the configuration, or this server does not lead.");
  return [
    h("p", { class: "soft" }, `Carrier: ${held.carrier || "not known yet"}.`),
    held.not_carried && h("p", { class: "bad" }, held.not_carried),
    table("By target", ["Target", ...HELD_HEADINGS, "$/h#"], held.targets.map((each) => ({ key: each.target, cells: [each.target, ...HELD.map((name) => count(each[name])), dollars(each.cost_usd_per_hour)] }))),
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

function consolidation({ consolidation: found }) {
  if (found.mode === undefined) return none("Nodes are not consolidated: there is no consolidation in the configuration, or this server does not lead.");
  const { mode, waits_for: waits, held_by: holds, held_by_left_out: left, under_way: step, paused, plan } = found;
  return [
    h("p", { class: "soft" }, `Mode: ${mode}.`),
    step && h("p", {}, `Under way since `, when(step.created_at_seconds), `: ${step.nodes.join(", ")} (${step.reason}), ${step.phase}${waits ? `; waits for ${waits}` : ""}.`),
    !step && waits && h("p", {}, `Nothing is begun: ${waits}.`),
    paused && h("p", { class: "bad" }, "Paused until ", when(paused.until_seconds), `: ${paused.why}.`),
    holds.length > 0 &&
      table("Who holds it", ["Namespace", "Since", "Until at most", "Pods wait#", "Pods to come#", "Requests#", "Increments#"], holds.map((each) => ({
        key: each.namespace,
        cells: [each.namespace || "not known", when(each.since_seconds), when(each.until_seconds), count(each.pods_waiting), count(each.expected_pods), count(each.requests), count(each.increments)],
      }))),
    more(left, "namespaces", "/consolidation"),
    plan && h("p", {}, "Planned at ", when(plan.at_seconds), `: ${several(plan.steps_planned, "step")}, ${dollars(plan.cost_usd_per_hour)} an hour become ${dollars(plan.cost_after_usd_per_hour)} (at least ${dollars(plan.least_usd_per_hour)}).`),
  ];
}

/** By the id of the place in the page: what is shown there, and the names of what it is made of. */
export const SECTIONS = {
  now: [now, ["status", "fleet", "increments"]],
  waiting: [waiting, ["waiting", "status"]],
  increments: [increments, ["increments"]],
  fleet: [fleet, ["fleet"]],
  rounds: [rounds, ["rounds", "status"]],
  decisions: [decisions, ["decisions", "status"]],
  episodes: [episodes, ["episodes"]],
  requests: [requests, ["requests"]],
  slack: [slack, ["slack"]],
  consolidation: [consolidation, ["consolidation"]],
};

/** The state in a sentence. */
export function headline({ status, fleet: { tiers = [] }, increments: found }) {
  const wait = status.waiting_pods === undefined ? "" : `${several(status.waiting_pods, "pod waits", "pods wait")}; `;
  return `${status.ready ? "Ready" : "Not ready"}; ${wait}${several(inFlight(found), "increment")} in flight; ${several(total(tiers, "target_size"), "node")}.`;
}
