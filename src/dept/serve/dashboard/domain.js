// #/domain/NAME One domain: what is served, how well, and the way back.

import { change, get, path } from "./api.js";
import { basisOf, driftChart, gainChart, gainScale, spanOf, sparkline, verdictPill } from "./charts.js";
import { h } from "./dom.js";
import { ago, bytes, count, interval, moment, ms, percent, points, some } from "./format.js";
import { card as jobCard } from "./jobs.js";
import { say } from "./messages.js";
import { health } from "./overview.js";
import { adaptButton, promoteButton, toLabels, versionName, wayBack } from "./serving.js";
import { domainOf, isOpen, state, traffic } from "./store.js";

const MODES = {
  off: "Off",
  shadow: "Shadow: learn and compare, serve nothing of it",
  on: "On: serve what does no harm",
};
const DONE = {
  add: "added", activate: "promoted", publish: "published", rollback: "rolled back to", pin: "pinned", unpin: "unpinned",
  verdict: "judged",
};
const NOTHING = { versions: [], recent: [], history: [] };
let detail = NOTHING;

/** Fetch what the list of domains does not have. */
export async function load([name]) {
  const part = (what) => get(path("domains", name, what));
  // The source model has traffic, but neither versions nor a history.
  const parts = name === "source" ? [[], [], part("recent")] : [part("versions"), part("history"), part("recent")];
  const [versions, history, recent] = await Promise.all(parts);
  detail = { name, versions, history, recent };
}

export const actions = {
  async online(form) {
    const { domain } = form.dataset, mode = form.elements.mode.value, method = form.elements.method.value;
    await change("PUT", path("domains", domain, "online"), { mode, method }).catch((error) => {
      form.reset(); // show again how it is
      throw error;
    });
    say(`Online adaptation of ${domain}: ${mode}.`);
  },
};

export function view([name]) {
  const domain = domainOf(name), key = `domain/${name}`;
  const back = h("p.back", h("a", { href: "#/" }, "← Domains")), title = h("h1", h("bdi", name));
  if (!domain) return h("section", { data: { key } }, back, title, h("p.muted", state.missing || "Loading…"));
  const own = name !== "source", known = detail.name === name ? detail : NOTHING;
  const by = own ? `served by ${versionName(domain.active)}` : "images without a domain of their own";
  return h("section", { data: { key } },
    back,
    h("div.head",
      h("div", title, h("p", health(domain), h("span.muted", by))),
      own && h("div.buttons", wayBack(domain), adaptButton(name))),
    domain.reasons.length > 0 && h(`ul.reasons.${domain.health}`, domain.reasons.map((reason) => h("li", reason))),
    figures(domain),
    h("ul.jobs", (state.jobs ?? []).filter((job) => job.domain === name && isOpen(job)).map(jobCard)),
    h("div.columns",
      recentCard(known.recent),
      own && h("div.stack", versionsCard(domain, known.versions), onlineCard(domain), historyCard(known.history))));
}

// -- how well it is served ---------------------------------------------------------------------------------------

const figure = (name, ...content) => h("div", h("dt", name), h("dd", content));
const big = (value, unit = "") => h("span.value", value, h("small", unit));

const figures = (domain) =>
  h("dl.stats",
    figure("Gain", gainFigure(domain)),
    figure("Drift", driftFigure(domain)),
    figure("Traffic", trafficFigure(domain)),
    figure("Latency", latencyFigure(domain)));

function gainFigure({ verdict, live_gain: live, active }) {
  const gain = verdict ?? live;
  const unknown = active ? "known by labels, or after 50 compared images" : "no adapter is served";
  if (!gain) return [big("–"), h("span.muted", unknown)];
  const span = spanOf([gain]);
  return [
    h("span.both", big(points(gain.gain), " points"), verdictPill(gain)),
    gainChart(gain, span), gainScale(span),
    h("span.muted", `${interval(gain)}, ${verdict ? basisOf(gain) : "by the latest traffic"}`),
    verdict && live && h("span.muted", `latest traffic: ${points(live.gain)} (${interval(live)})`),
  ];
}

function driftFigure({ drift }) {
  if (drift.value === null) return [big("–"), h("span.muted", "known after some traffic")];
  const text = `traffic ${drift.drifted ? "no longer looks" : "looks"} like the images of the domain`;
  return [big(drift.value.toFixed(2)), driftChart(drift), h("span.muted", text)];
}

function trafficFigure({ name, images, errors, images_per_minute: rate, last_image: last }) {
  const words = [some(images, "image"), errors && `${count(errors)} broken`, last && `last ${ago(last)}`];
  return [
    big(count(rate), " images/min"), sparkline(traffic.get(name) ?? []),
    h("span.muted", words.filter(Boolean).join(", ")),
  ];
}

function latencyFigure({ latency: { p50_ms: p50, p99_ms: p99 } }) {
  if (p50 === null) return [big("–"), h("span.muted", "no traffic yet")];
  return [big(ms(p50), " ms"), h("span.muted", `median, p99 ${ms(p99)} ms`)];
}

// -- what it predicts --------------------------------------------------------------------------------------------

const recentCard = (recent) =>
  h("div.card", { data: { key: "recent" } },
    h("h2", "Latest images"),
    h("p.muted", "Source model → adapter, on some of the traffic. Kept in memory only."),
    recent.length
      ? h("ul.pictures", recent.map(pictured))
      : h("p.muted.empty", "No image yet. ", h("a", { href: "#/predict" }, "Predict some")));

function pictured({ at, name, thumbnail, version, before, after, changed }) {
  const label = ({ label: text, probability }) => [h("bdi", text), h("small", ` ${percent(probability)}`)];
  const title = `${name || "image"}, ${moment(at)}, ${versionName(version)}`;
  return h(`li.${changed ? "changed" : ""}`, { data: { key: `${at} ${name}` } },
    h("img", { src: thumbnail, alt: "", title }),
    h("span.was", label(before)), h("span.now", "→ ", label(after)));
}

// -- its adapters ------------------------------------------------------------------------------------------------

function versionsCard(domain, versions) {
  const span = spanOf(versions.map(({ verdict }) => verdict));
  return h("div.card", { data: { key: "versions" } },
    h("h2", "Adapters"),
    domain.pinned && h("p.muted", "Pinned: nothing changes what is served until it is unpinned."),
    h("ol.versions",
      versions.map((version) => versionRow(domain, version, span)),
      h(`li.${domain.active === 0 ? "active" : ""}`, { data: { key: 0 } },
        h("div.what", h("strong", "Source model"), h("span.muted", "without an adapter")),
        h("div.buttons", promoteButton(domain, { number: 0 })))));
}

function versionRow(domain, version, span) {
  const { number, verdict, method, images, made_by: by, created } = version;
  const facts = [method, images && some(images, "image"), bytes(version.bytes), `by ${by}`].filter(Boolean).join(", ");
  return h(`li.${version.active ? "active" : ""}`, { data: { key: number } },
    h("div.what",
      h("strong", `Version ${number}`), h("time.muted", { title: moment(created) }, ago(created)),
      h("span.muted", facts), version.note && h("span.muted", version.note)),
    verdict && h("div.judged",
      verdictPill(verdict), h("span.number", points(verdict.gain)), gainChart(verdict, span),
      h("span.muted", `${interval(verdict)}, ${basisOf(verdict)}`)),
    h("div.buttons",
      promoteButton(domain, version),
      version.can_be_checked && h("a.button", { href: toLabels(domain.name, number) }, "Label images")));
}

function onlineCard({ name, online }) {
  const mode = ([value, words]) =>
    h("label.check", h("input", { type: "radio", name: "mode", value, checked: online.mode === value }), words);
  const method = (value) => h("option", { value, selected: value === (online.method || "dept") }, value);
  return h("div.card", { data: { key: "online" } },
    h("h2", "Online adaptation"),
    h("form.online", { data: { change: "online", domain: name } },
      h("fieldset", h("legend.unseen", "Mode"), Object.entries(MODES).map(mode)),
      h("label.field", "Method", h("select", { name: "method" }, state.server.online_methods.map(method)))),
    online.mode !== "off" && h("p.muted", learned(online)),
    online.comparison && h("p", "Latest candidate: ", verdictPill(online.comparison),
      ` ${points(online.comparison.gain)} points (${interval(online.comparison)})`));
}

function learned({ state: now, images, updates, published, refused, dropped, detail: words }) {
  const facts = [some(images, "image"), some(updates, "update"), `${published} published`, `${refused} refused`];
  if (dropped) facts.push(`${count(dropped)} images dropped`);
  return `${now}: ${facts.join(", ")}. ${words}`;
}

const historyCard = (changes) =>
  h("details.card", { data: { key: "history" } },
    h("summary", h("h2", "History")),
    h("ol.history", changes.map(({ at, made_by: by, action, version, detail: words }) =>
      h("li",
        h("time.muted", { title: moment(at) }, ago(at)),
        h("span", `${by} ${done(action, version)}`, words && h("small", ` ${words}`))))));

function done(action, version) {
  if (action === "create") return "made the domain";
  if (action.startsWith("online ")) return `set online adaptation to ${action.slice(7)}`;
  return `${DONE[action] ?? action} ${versionName(version)}`;
}
