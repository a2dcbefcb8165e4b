// A small chart of one series, with the newest value at the right.

import { colour } from "./colour_scheme.js";

const EDGE = 2.5;
const PIXELS_A_POINT = 1.5;

/**
 * Return the values reduced to the width, and the number of values that fit.
 *
 * Each returned value is the largest of a group, so that peaks stay visible; null if none of the group is known.
 */
function thinned(values, most, width) {
  const each = Math.max(1, Math.ceil((most * PIXELS_A_POINT) / width));
  const made = [];
  for (let end = values.length; end > 0; end -= each) {
    const known = values.slice(Math.max(0, end - each), end).filter((value) => value !== null);
    made.unshift(known.length ? Math.max(...known) : null);
  }
  return [made, Math.ceil(most / each)];
}

/** Draw the samples, right-aligned on a canvas that has room for `most` of them; null is a gap. */
export function drawSparkline(canvas, samples, most) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width) return; // the column is hidden in a narrow window
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  if (!samples?.length) return;

  const [values, room] = thinned(samples, most, width);
  const top = Math.max(1, ...values);
  const step = (width - 2 * EDGE) / Math.max(1, room - 1);
  const x = (index) => width - EDGE - (values.length - 1 - index) * step;
  const y = (value) => height - EDGE - (value / top) * (height - 2 * EDGE);

  const line = new Path2D();
  const area = new Path2D();
  let start = null;
  values.forEach((value, index) => {
    if (value === null) return;
    if (start === null) {
      start = index;
      line.moveTo(x(index), y(value));
      area.moveTo(x(index), height);
    } else {
      line.lineTo(x(index), y(value));
    }
    area.lineTo(x(index), y(value));
    if (index + 1 === values.length || values[index + 1] === null) {
      area.lineTo(x(index), height);
      start = null;
    }
  });
  context.fillStyle = colour("items-fill");
  context.fill(area);
  context.strokeStyle = colour("items");
  context.lineWidth = 1.25;
  context.lineJoin = "round";
  context.stroke(line);

  const last = values.at(-1);
  if (last !== null) {
    context.fillStyle = colour("items");
    context.beginPath();
    context.arc(x(values.length - 1), y(last), 1.75, 0, 2 * Math.PI);
    context.fill();
  }
}
