// What is served for a domain: promote, roll back, pin.

import { change, path } from "./api.js";
import { button, h } from "./dom.js";
import { ask, say } from "./messages.js";

/** "version 3" */
export const versionName = (number) => (number === 0 ? "source model" : `version ${number}`);

export const actions = {
  async promote({ dataset: { domain, version, verdict } }) {
    const number = Number(version), force = verdict === "harmful";
    const text = "Its predictions are probably worse than those of the source model.";
    if (force && !(await ask(`Serve version ${number} although it was judged harmful?`, text, "Serve it"))) return;
    await change("POST", path("domains", domain, "activate"), { version: number, force });
    say(`${domain} is now served by ${versionName(number)}.`);
  },
  async rollback({ dataset: { domain } }) {
    const { active } = await change("POST", path("domains", domain, "rollback"));
    say(`Rolled back: ${domain} is served by ${versionName(active)} again.`);
  },
  async pin({ dataset: { domain, pinned } }) {
    await change("PUT", path("domains", domain, "pin"), { pinned: pinned === "true" });
    say(pinned === "true" ? `${domain} stays at its version until it is unpinned.` : `${domain} is no longer pinned.`);
  },
};

/** Promote, or that it is served. */
export function promoteButton(domain, { number, verdict }) {
  if (domain.active === number) return h("span.pill.serving", "Serving");
  const judged = verdict?.verdict, data = { click: "promote", domain: domain.name, version: number, verdict: judged };
  const text = `${number === 0 ? "Serve" : "Promote"} ${versionName(number)}`;
  return button(judged === "harmful" ? "danger" : "", data, text, { disabled: domain.pinned });
}

/** Pin and roll back. */
export function wayBack({ name, pinned, previous }) {
  const text = previous === null ? "Roll back" : `Roll back to ${versionName(previous)}`;
  return [
    button("", { click: "pin", domain: name, pinned: !pinned }, pinned ? "Unpin" : "Pin"),
    button("", { click: "rollback", domain: name }, text, { disabled: pinned || previous === null }),
  ];
}

/** The button that opens the dialog of an adaptation. */
export const adaptButton = (domain) => button("primary", { click: "open-adapt", domain }, "Adapt to new images");

/** The addresses of pages about a domain. */
export const toDomain = (domain) => `#/domain/${encodeURIComponent(domain)}`;
export const toLabels = (domain, version) => `#/label/${encodeURIComponent(domain)}/${version}`;
