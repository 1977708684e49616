// #/ All domains: those that need a look first.

import { driftChart, gainChart, spanOf, sparkline } from "./charts.js";
import { h } from "./dom.js";
import { bytes, count, interval, ms, points, some } from "./format.js";
import { adaptButton, toDomain } from "./serving.js";
import { changed, isOpen, state, traffic } from "./store.js";

// The urgent ones first.
const HEALTH = { problem: "Problem", warning: "Warning", ok: "Healthy", unknown: "Not judged" };
const COLUMNS = ["Domain", "Gain, points", "Drift", "Images per minute", "Latency p50 / p99", "Online"];
const MANY = 6; // domains from which one may want to search
const ROWS = 100; // rows at most: drawing more would take too long, every few seconds
let filter = "";

export const actions = {
  filter(element) {
    filter = element.value;
    changed();
  },
};

export function view() {
  const { domains } = state;
  if (!domains) return h("section", { data: { key: "overview" } }, h("p.muted", "Loading…"));
  const text = "Find a domain", data = { input: "filter" };
  const search = { type: "search", placeholder: text, "aria-label": text, data };
  return h("section", { data: { key: "overview" } },
    h("div.head",
      h("div", h("h1", "Domains"), h("p.muted", subtitle(state.server))),
      h("div.buttons", domains.length >= MANY && h("input", search), adaptButton())),
    domains.length ? [summary(domains), table(found(domains))] : nothing());
}

function subtitle({ arch, classes, backbone_bytes: backbone, adapter_bytes: adapters }) {
  const model = `${arch}, ${some(classes.length, "class", "classes")}. One backbone of ${bytes(backbone)}`;
  return adapters ? `${model}, ${bytes(adapters)} of adapters.` : `${model}.`;
}

function found(domains) {
  const wanted = filter.trim().toLowerCase(), urgency = Object.keys(HEALTH);
  const rank = ({ health }) => urgency.indexOf(health);
  return domains
    .filter(({ name }) => name.toLowerCase().includes(wanted))
    .sort((one, other) => rank(one) - rank(other) || one.name.localeCompare(other.name));
}

function summary(domains) {
  const sum = (name) => domains.reduce((total, domain) => total + domain[name], 0);
  const having = (...states) => domains.filter(({ health }) => states.includes(health)).length;
  const urgent = having("problem", "warning"), running = (state.jobs ?? []).filter(isOpen).length;
  const slow = Math.max(...domains.map(({ latency }) => latency.p99_ms ?? -1));
  const slowest = domains.find(({ latency }) => latency.p99_ms === slow);
  return h("dl.stats",
    stat("Domains", count(domains.filter(({ name }) => name !== "source").length), `${having("ok")} healthy`,
      urgent > 0 && [", ", h("span.warn", `${urgent} to look at`)]),
    stat("Images per minute", count(sum("images_per_minute")), `${count(sum("images"))} since start`),
    stat("Slowest p99", slowest ? `${ms(slow)} ms` : "–", slowest ? h("bdi", slowest.name) : "no traffic yet"),
    stat("Adaptations", count(running), running ? h("a", { href: "#/jobs" }, "running now") : "none running"));
}

const stat = (name, value, ...remark) =>
  h("div", h("dt", name), h("dd", h("span.value", value), h("span.muted", remark)));

function table(domains) {
  const shown = domains.slice(0, ROWS), span = spanOf(shown.map(gainOf));
  return h("div.card.table",
    h("table",
      h("thead", h("tr", COLUMNS.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", shown.map((domain) => row(domain, span)))),
    !domains.length && h("p.muted.empty", "No domain has this in its name."),
    domains.length > ROWS && h("p.muted.empty", `${ROWS} of ${count(domains.length)} are shown. Find others by name.`));
}

const gainOf = (domain) => domain.verdict ?? domain.live_gain;

function row(domain, span) {
  const { name, drift, latency, online, images_per_minute: rate } = domain, gain = gainOf(domain);
  const cells = [
    gain && [h("span.number", points(gain.gain)), h("small", ` ${interval(gain)}`), gainChart(gain, span)],
    drift.value !== null && [h("span.number", drift.value.toFixed(2)), driftChart(drift)],
    [h("span.number", count(rate)), sparkline(traffic.get(name) ?? [])],
    latency.p50_ms !== null && h("span.number", `${ms(latency.p50_ms)} / ${ms(latency.p99_ms)}`, h("small", " ms")),
    online.mode !== "off" && h(`span.pill.${online.mode}`, online.mode),
  ];
  return h("tr", { data: { key: name } },
    h("th", { scope: "row" },
      h("a", { href: toDomain(name) }, h("bdi", name)),
      h("span.under", health(domain), h("span.muted", served(domain)))),
    cells.map((cell, i) =>
      h(cell ? "td" : "td.none", { data: { label: COLUMNS[i + 1] } }, cell || h("span.muted", "–"))));
}

/** A dot and a word. */
export const health = ({ health: state }) => h(`span.health.${state}`, HEALTH[state]);

function served({ name, active, pinned }) {
  if (name === "source") return "no adapter";
  return (active ? `version ${active}` : "source model") + (pinned ? ", pinned" : "");
}

const nothing = () =>
  h("div.card.nothing",
    h("h2", "No domain yet"),
    h("p.muted", "Upload unlabelled images of a new site. The model adapts to them in another process, and you decide ",
      "whether to serve the result."),
    adaptButton());
