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

const two = (number) => String(number).padStart(2, "0");

/** The time of day; with the date where it is another day's. */
export function clock(epochSeconds) {
  const at = new Date(epochSeconds * 1000);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} `;
  const today = at.toDateString() === new Date().toDateString();
  return `${today ? "" : day}${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** A time at the foot of a chart. */
export function minute(epochSeconds) {
  const at = new Date(epochSeconds * 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}`;
}

export function iso(epochSeconds) {
  return new Date(epochSeconds * 1000).toISOString();
}
