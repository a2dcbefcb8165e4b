// The time range of all large charts, chosen by the user.

import { element } from "./dom.js";

const RANGES = [
  { seconds: 300, label: "5 min", words: "5 minutes" },
  { seconds: 900, label: "15 min", words: "15 minutes" },
  { seconds: 3600, label: "1 h", words: "hour" },
];

let chosen = RANGES.at(-1);
const listeners = [];

/** Return the chosen range: its length in seconds, and its name in words. */
export function timeRange() {
  return chosen;
}

/** Call `listener` after each change of the range. */
export function onTimeRangeChange(listener) {
  listeners.push(listener);
}

/** Return a group of buttons that choose the range. All such groups show the same choice. */
export function makeTimeRangePicker() {
  const buttons = RANGES.map((range) => {
    const button = element("button", { type: "button", textContent: range.label });
    button.addEventListener("click", () => {
      chosen = range;
      listeners.forEach((listener) => listener());
    });
    return button;
  });
  const show = () => buttons.forEach((button, index) => (button.ariaPressed = String(RANGES[index] === chosen)));
  onTimeRangeChange(show);
  show();
  const group = element("div", { className: "time-range", role: "group" }, ...buttons);
  group.ariaLabel = "Time range of the charts";
  return group;
}
