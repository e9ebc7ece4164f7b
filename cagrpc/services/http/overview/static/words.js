// Numbers, times and counts as people read them.

const whole = new Intl.NumberFormat("en");

export function count(number) {
  return whole.format(number);
}

export function several(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}

/** As `solver.model.money` has it: to the cent, and of less than ten cents two digits. */
export function dollars(number) {
  if (number === null || number === undefined) return "";
  const amount = Math.abs(number);
  const digits = amount < 0.00005 || amount >= 0.095 ? 2 : 1 - Math.floor(Math.log10(amount));
  return `${number < 0 && amount >= 0.00005 ? "-" : ""}$${amount.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

export function percent(number) {
  return number === null || number === undefined ? "" : `${(100 * number).toFixed(2)} %`;
}

export function seconds(number) {
  return `${number.toFixed(2)} s`;
}

/** The time of day; with the date where it is another day's. */
export function clock(epochSeconds) {
  const at = new Date(epochSeconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} `;
  const today = at.toDateString() === new Date().toDateString();
  return `${today ? "" : day}${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function iso(epochSeconds) {
  return new Date(epochSeconds * 1000).toISOString();
}
