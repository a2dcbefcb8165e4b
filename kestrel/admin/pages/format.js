// Formats of numbers, sizes, durations and times. Unknown values are shown as a dash.

export const UNKNOWN = "–";

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const TENTHS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

function known(format) {
  return (value) => (typeof value === "number" && Number.isFinite(value) ? format(value) : UNKNOWN);
}

/** 1,234,567 */
export const count = known((value) => WHOLE.format(value));

/** 1.2M: short enough for an axis. */
export const compact = known((value) => COMPACT.format(value));

/** 1,234,567, or 12.3M from ten million on: for narrow columns. */
export const briefCount = known((value) => (value < 1e7 ? WHOLE : COMPACT).format(value));

/** 1.2, 1,234 or 1.2M: a number per second. */
export const rate = known((value) => (value < 10 ? TENTHS : value < 1e6 ? WHOLE : COMPACT).format(value));

/** 512 B, 1.5 MiB */
export const bytes = known((value) => {
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < BYTES.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || size >= 100 ? WHOLE : TENTHS;
  return `${digits.format(size)} ${BYTES[unit]}`;
});

function two(value, size, unit, smallerSize, smallerUnit) {
  const rounded = Math.round(value / smallerSize) * smallerSize;
  const rest = Math.round((rounded % size) / smallerSize);
  const first = `${Math.floor(rounded / size)} ${unit}`;
  return rest ? `${first} ${rest} ${smallerUnit}` : first;
}

/** 340 µs, 5.2 ms, 3 min 20 s, 4 d 2 h; the argument is in milliseconds. */
export const duration = known((value) => {
  if (value === 0) return "0 ms";
  if (value < 0.9995) return `${(value < 0.01 ? TENTHS : WHOLE).format(value * 1000)} µs`;
  if (value < 999.5) return `${(value < 10 ? TENTHS : WHOLE).format(value)} ms`;
  if (value < 59.5 * SECOND) return `${(value < 10 * SECOND ? TENTHS : WHOLE).format(value / SECOND)} s`;
  if (value < HOUR - SECOND / 2) return two(value, MINUTE, "min", SECOND, "s");
  if (value < DAY - MINUTE / 2) return two(value, HOUR, "h", MINUTE, "min");
  return two(value, DAY, "d", HOUR, "h");
});

/** 340 µs, 5.2 ms, 3 min 20 s, 4 d 2 h; the argument is in microseconds. */
export const microseconds = known((value) => duration(value / 1000));

/** 12:34:05, in the user's time zone. */
export const clock = known((ms) => new Date(ms).toLocaleTimeString("en-GB", { hour12: false }));

/** 12:34 */
export const hourAndMinute = known((ms) => clock(ms).slice(0, 5));

/** 2026-11-23 12:34:05, in the user's time zone. */
export const dateAndTime = known((ms) => `${new Date(ms).toLocaleDateString("sv-SE")} ${clock(ms)}`);

/** "1 item", "30 items" */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** "all 30 items", "the only item", "no items" */
export function allOf(number, noun) {
  if (number === 0) return `no ${noun}s`;
  return number === 1 ? `the only ${noun}` : `all ${plural(number, noun)}`;
}
