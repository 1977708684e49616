// Numbers and times as people read them.

const MINUS = "\u2212";
const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 0.032 -> "+3.2": a change of accuracy in points. */
export function points(fraction) {
  const value = Math.abs(100 * fraction).toFixed(1);
  if (Number(value) === 0) return value;
  return (fraction < 0 ? MINUS : "+") + value;
}

/** "+1.0 to +5.4"; of no width if all images on which the models disagree were labelled */
export const interval = ({ low, high }) => (low === high ? "exact" : `${points(low)} to ${points(high)}`);

/** 0.934 -> "93 %" */
export const percent = (fraction) => `${Math.round(100 * fraction)} %`;

/** 12345 -> "12,345" */
export const count = (value) => number.format(value);

/** "1 image", "2 images" */
export const some = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;

/** Milliseconds. */
export const ms = (value) => (value < 10 ? value.toFixed(1) : count(value));

/** 312000 -> "312 KB" */
export function bytes(value) {
  const units = ["B", "KB", "MB", "GB"];
  const step = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(1, value)) / 3));
  const scaled = value / 1000 ** step;
  return `${scaled < 10 && step ? scaled.toFixed(1) : Math.round(scaled)} ${units[step]}`;
}

/** 75 -> "1 min 15 s" */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds)), minutes = Math.floor(whole / 60);
  if (minutes === 0) return `${whole} s`;
  if (minutes < 10 && whole % 60) return `${minutes} min ${whole % 60} s`;
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** How long ago a Unix time was. */
export function ago(at) {
  const seconds = Date.now() / 1000 - at;
  if (seconds < 10) return "just now";
  if (seconds < 60) return `${Math.round(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return new Date(1000 * at).toLocaleDateString("en", { day: "numeric", month: "short", year: "numeric" });
}

/** A Unix time in full, for titles. */
export const moment = (at) => new Date(1000 * at).toLocaleString("en");
