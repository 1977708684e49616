// Short messages, errors, and questions before something is lost.

import { at, h, render } from "./dom.js";

const SECONDS = 8;
let timer = 0;

/** Tell what was done; screen readers read it. */
export function say(text, kind = "done") {
  render(at("toast"), h(`p.${kind}`, text));
  clearTimeout(timer);
  timer = setTimeout(() => render(at("toast")), 1000 * SECONDS);
}

/** Tell what went wrong. */
export const complain = (error) => say(error.message, "error");

/** Whether the answer to a question is yes. */
export function ask(title, text, yes) {
  const dialog = at("confirm");
  at("confirm-title").textContent = title;
  at("confirm-text").textContent = text;
  at("confirm-yes").textContent = yes;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
