// Numbers, times and counts as people read them.

const whole = new Intl.NumberFormat("en");

export function count(number) {
  return whole.format(number);
}

export function several(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}

/** A share as people say it: "62 %". */
export function share(number) {
  return `${Math.round(100 * number)} %`;
}

export function percent(number) {
  return number === null || number === undefined ? "" : `${(100 * number).toFixed(2)} %`;
}

export function seconds(number) {
  return `${number.toFixed(2)} s`;
}

/** The time of day in UTC, as logs, messages and the cluster's objects have it; with the date where it is another day's. */
export function clock(epochSeconds) {
  const [day, time] = rfc3339(epochSeconds).split("T");
  return rfc3339(Date.now() / 1000).startsWith(day) ? time : `${day}T${time}`;
}

/** A time at the foot of a chart, in UTC. */
export function minute(epochSeconds) {
  return `${iso(epochSeconds).slice(11, 16)}Z`;
}

/** The same time where the reader is. */
export function here(epochSeconds) {
  return new Date(epochSeconds * 1000).toLocaleString("en", { dateStyle: "medium", timeStyle: "long" });
}

const rfc3339 = (epochSeconds) => `${iso(epochSeconds).slice(0, 19)}Z`;

export function iso(epochSeconds) {
  return new Date(epochSeconds * 1000).toISOString();
}
