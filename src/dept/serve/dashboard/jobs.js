// #/jobs Offline adaptations: progress, cancel, verdict, promote.

import { change, path } from "./api.js";
import { outcome } from "./charts.js";
import { button, h } from "./dom.js";
import { ago, duration, moment, points, some } from "./format.js";
import { ask, say } from "./messages.js";
import { adaptButton, promoteButton, toDomain, toLabels } from "./serving.js";
import { domainOf, isOpen, state } from "./store.js";

const STATES = {
  queued: "Waiting", running: "Running", finished: "Finished", failed: "Failed", cancelled: "Cancelled",
  interrupted: "Interrupted",
};

export const actions = {
  async cancel({ dataset: { job } }) {
    if (!(await ask("Cancel this adaptation?", "Nothing of it is kept.", "Cancel it"))) return;
    await change("POST", path("jobs", job, "cancel"));
    say("Cancelled.");
  },
  async remove({ dataset: { job } }) {
    const text = "Uploaded images are deleted, those to label too. The version that it made stays.";
    if (!(await ask("Remove the files of this adaptation?", text, "Remove them"))) return;
    await change("DELETE", path("jobs", job));
    say("Removed.");
  },
};

export function view() {
  const jobs = state.jobs ?? [], text = "Each runs in a process of its own. Predictions never wait for it.";
  return h("section", { data: { key: "jobs" } },
    h("div.head", h("div", h("h1", "Adaptations"), h("p.muted", text)), adaptButton()),
    jobs.length ? h("ul.jobs", jobs.map(card)) : h("p.card.nothing.muted", "Nothing was adapted here yet."));
}

/** One adaptation. */
export function card(job) {
  const { id, domain, method, images, made_by: by, created, message, verdict } = job;
  return h("li.card.job", { data: { key: id, state: job.state } },
    h("div.head",
      h("div",
        h("h2", h("a", { href: toDomain(domain) }, h("bdi", domain))),
        h("p.muted", `${method}, ${some(images, "image")}, by ${by}, `,
          h("time", { title: moment(created) }, ago(created)))),
      h(`span.pill.${job.state}`, STATES[job.state])),
    job.state === "running" && progress(job),
    message && h(job.state === "failed" ? "p.error" : "p", message),
    verdict && outcome(verdict),
    h("div.buttons", isOpen(job) ? button("", { click: "cancel", job: id }, "Cancel") : afterwards(job)));
}

function progress({ domain, stage, step, steps, progress: share, eta_seconds: eta }) {
  const words = [stage, steps && `step ${step} of ${steps}`, eta !== null && `about ${duration(eta)} left`];
  return [
    h("progress", { max: 1, value: steps ? share.toFixed(3) : null, "aria-label": `Progress of ${domain}` }),
    h("p.muted", words.filter(Boolean).join(" · ")),
  ];
}

function afterwards({ id, domain: name, version, verdict }) {
  const domain = domainOf(name);
  return [
    version !== null && domain && promoteButton(domain, { number: version, verdict }),
    version !== null && h("a.button", { href: toLabels(name, version) }, "Label images"),
    button("quiet", { click: "remove", job: id }, "Remove files"),
  ];
}

/** Say it when an adaptation ends while the page is open. */
export function announce(before, after) {
  const open = new Set((before ?? []).filter(isOpen).map(({ id }) => id));
  for (const job of after.filter(({ id }) => open.has(id)).filter((one) => !isOpen(one))) {
    const gain = job.verdict ? `: ${job.verdict.verdict}, ${points(job.verdict.gain)} points` : "";
    say(`Adaptation of ${job.domain} ${STATES[job.state].toLowerCase()}${gain}.`);
  }
}
