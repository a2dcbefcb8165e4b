// The large charts: one or two series of the last hour or a shorter time, drawn by uPlot.

import { colour, onColourSchemeChange } from "./colour_scheme.js";
import { element, setText } from "./dom.js";
import { clock, hourAndMinute } from "./format.js";
import { onTimeRangeChange, timeRange } from "./time_range.js";

const LEAST_S = 600;
const HEIGHT = 190;
const FONT = '11.5px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
const STEPS_OF_WHOLE_NUMBERS = [1, 2, 5].flatMap((digit) => [...Array(15)].map((_, zeros) => digit * 10 ** zeros));
STEPS_OF_WHOLE_NUMBERS.sort((one, other) => one - other);

const uPlot = globalThis.uPlot;

/** Distances between the lines of an axis of bytes: powers of two. */
export const STEPS_OF_BYTES = [...Array(50)].map((_, power) => 2 ** power);
export { STEPS_OF_WHOLE_NUMBERS };

/** Distances between the lines of an axis whose labels have one decimal, so 0.25 is not one of them. */
export const STEPS_OF_TENTHS = [0.1, 0.2, 0.5, ...STEPS_OF_WHOLE_NUMBERS];

/**
 * Return a chart with its `figure` element and an `update` function.
 *
 * `series` is a list of {key, label, colour, fill}: the key in a history, the label, and the names of the colours.
 * `format` formats a value for the caption, `axisFormat` for the axis. `steps` are the distances between its lines.
 */
export function makeChart({ title, series, format, axisFormat = format, steps }) {
  const readings = series.map(({ label, colour: name }) => {
    const value = element("span", { className: "reading-value" });
    const mark = element("span", { className: `swatch swatch-${name}` });
    mark.ariaHidden = "true";
    return { value, item: element("span", { className: "reading" }, mark, label ? `${label} ` : "", value) };
  });
  const when = element("span", { className: "reading-time" });
  const caption = element(
    "figcaption",
    {},
    element("span", { className: "chart-title", textContent: title }),
    element("span", { className: "readings" }, when, ...readings.map(({ item }) => item)),
  );
  const holder = element("div", { className: "chart" });
  holder.role = "img";
  const figure = element("figure", { className: "panel" }, caption, holder);

  let endS = Date.now() / 1000;
  let lengthS = timeRange().seconds;
  let data = [[], ...series.map(() => [])];
  let plot = null;

  function read(index) {
    const isNewest = index === null || index === undefined;
    const at = isNewest ? data[0].length - 1 : index;
    setText(when, isNewest || at < 0 ? "" : clock(data[0][at] * 1000));
    readings.forEach(({ value }, number) => setText(value, format(data[number + 1][at])));
  }

  function describe() {
    const parts = series.map(({ label }, number) => {
      const values = data[number + 1].filter((value, at) => value !== null && data[0][at] >= endS - lengthS);
      if (!values.length) return `${label || title}: no data yet`;
      return `${label || title}: now ${format(values.at(-1))}, at most ${format(Math.max(...values))}`;
    });
    holder.ariaLabel = `${title} over the last ${timeRange().words}. ${parts.join("; ")}.`;
  }

  function plotOptions(width) {
    const axis = { stroke: () => colour("soft"), font: FONT, ticks: { show: false }, border: { show: false } };
    return {
      width,
      height: HEIGHT,
      padding: [10, 6, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false, setScale: false } },
      scales: {
        x: { time: true, range: () => [endS - lengthS, endS] },
        y: { range: (_, __, most) => [0, most > 0 ? most * 1.08 : 1] },
      },
      axes: [
        {
          ...axis,
          size: 26,
          space: 64,
          grid: { show: false },
          values: (_, seconds) => seconds.map((each) => hourAndMinute(each * 1000)),
        },
        {
          ...axis,
          size: 62,
          space: 38,
          gap: 8,
          ...(steps ? { incrs: steps } : {}),
          grid: { stroke: () => colour("line"), width: 1 },
          values: (_, values) => values.map((each) => axisFormat(each)),
        },
      ],
      series: [
        {},
        ...series.map((each) => ({
          stroke: () => colour(each.colour),
          fill: each.fill ? () => colour(each.fill) : undefined,
          width: 1.6,
          points: { show: false },
        })),
      ],
      hooks: { setCursor: [({ cursor }) => read(cursor.idx)] },
    };
  }

  function fit() {
    const width = Math.floor(holder.clientWidth);
    if (width < 50) return;
    if (plot === null) {
      plot = new uPlot(plotOptions(width), data, holder);
    } else if (plot.width !== width) {
      plot.setSize({ width, height: HEIGHT });
    }
  }

  function show() {
    const length = data[0].length > 1 ? data[0].at(-1) - data[0][0] : 0;
    lengthS = Math.min(timeRange().seconds, Math.max(LEAST_S, length));
    plot?.setData(data);
    fit();
    read(plot?.cursor.idx ?? null);
    describe();
  }

  new ResizeObserver(fit).observe(holder);
  onColourSchemeChange(() => plot?.redraw());
  onTimeRangeChange(show);

  return {
    figure,

    /** Show one series of a history; without a history, show that there is no data. */
    update({ end_ms: endMs, step_ms: stepMs }, history) {
      const length = history?.[series[0].key]?.length ?? 0;
      endS = endMs / 1000;
      const times = Array.from({ length }, (_, index) => (endMs - (length - 1 - index) * stepMs) / 1000);
      data = [times, ...series.map(({ key }) => history?.[key] ?? [])];
      show();
    },
  };
}
