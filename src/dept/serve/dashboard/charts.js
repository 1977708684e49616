// Small drawings: an interval around zero, a bar with a threshold, a line of traffic. And the words for a gain.

import { h, s } from "./dom.js";
import { interval, points, some } from "./format.js";

const SPANS = [0.05, 0.1, 0.2, 0.3, 0.5, 1];
const VERDICTS = { improved: "Improved", uncertain: "Uncertain", harmful: "Harmful" };

/** A span that holds all these gains, so that charts beside each other can be compared. */
export function spanOf(gains) {
  const ends = gains.filter(Boolean).flatMap(({ low, high }) => [Math.abs(low), Math.abs(high)]);
  return SPANS.find((span) => span >= Math.max(0, ...ends)) ?? 1;
}

/** An interval of a gain on an axis from -span to +span. */
export function gainChart(gain, span) {
  const x = (value) => 50 + (48 * Math.max(-span, Math.min(span, value))) / span;
  const label = `${points(gain.gain)} points, interval ${interval(gain)}`;
  return s(`svg.gain.${gain.verdict}`, { role: "img", "aria-label": label },
    s("line.axis", { x1: "2%", x2: "98%", y1: 10, y2: 10 }),
    s("line.zero", { x1: "50%", x2: "50%", y1: 2, y2: 18 }),
    s("rect.range", { x: share(x(gain.low)), width: share(x(gain.high) - x(gain.low)), y: 6, height: 8, rx: 4 }),
    s("circle.best", { cx: share(x(gain.gain)), cy: 10, r: 5 }));
}

const share = (percent) => `${percent.toFixed(2)}%`;

/** The ends of that axis. */
export const gainScale = (span) =>
  h("span.scale", { "aria-hidden": "true" },
    [-span, 0, span].map((value) => h("span", points(value).replace(/\.0$/, ""))));

/** Improved, uncertain or harmful. */
export const verdictPill = ({ verdict }) => h(`span.pill.${verdict}`, VERDICTS[verdict]);

/** What a gain rests on. */
export const basisOf = ({ basis, images }) =>
  basis === "labels" ? `by ${some(images, "label")}` : `estimated without labels on ${some(images, "image")}`;

/** A gain with its chart and what it rests on. */
export function outcome(gain) {
  const span = spanOf([gain]);
  return h("div.outcome",
    h("div", h("span.value", points(gain.gain), h("small", " points")), verdictPill(gain)),
    h("div", gainChart(gain, span), gainScale(span)),
    h("p.muted", `${gain.basis === "labels" ? "95 % interval" : "Interval"}: ${interval(gain)}, ${basisOf(gain)}.`));
}

/** How far traffic has moved: full at twice the threshold, which is marked. */
export function driftChart({ value, threshold, drifted }) {
  const label = `drift ${value.toFixed(2)}, threshold ${threshold}`;
  return s(`svg.drift.${drifted ? "drifted" : ""}`, { role: "img", "aria-label": label },
    s("rect.track", { x: 0, y: 7, width: "100%", height: 6, rx: 3 }),
    s("rect.fill", { x: 0, y: 7, width: share(Math.min(100, (50 * value) / threshold)), height: 6, rx: 3 }),
    s("line.mark", { x1: "50%", x2: "50%", y1: 3, y2: 17 }));
}

/** Images per minute since the page was opened, the latest at the right; nothing before there is something to see. */
export function sparkline(values) {
  if (values.length < 3 || !values.some(Boolean)) return null;
  const top = 1.2 * Math.max(...values), step = 100 / Math.max(1, values.length - 1);
  const line = values.map((value, i) => `${(i * step).toFixed(1)},${(22 - (20 * value) / top).toFixed(1)}`).join(" ");
  const size = { viewBox: "0 0 100 24", preserveAspectRatio: "none" };
  return s("svg.spark", { ...size, role: "img", "aria-label": "traffic since this page was opened" },
    s("polygon", { points: `0,24 ${line} 100,24` }), s("polyline", { points: line }));
}
