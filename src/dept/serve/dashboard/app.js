// The page: which view is shown, what is asked of the server and when, and where events go.

import * as adapt from "./adapt.js";
import { get, hasToken, useToken } from "./api.js";
import * as domain from "./domain.js";
import { at, button, h, render } from "./dom.js";
import * as jobs from "./jobs.js";
import * as label from "./label.js";
import { complain } from "./messages.js";
import * as overview from "./overview.js";
import * as predict from "./predict.js";
import * as serving from "./serving.js";
import { changed, isOpen, onChange, setDomains, state } from "./store.js";

const VIEWS = { "": overview, domain, jobs, label, predict };
const ARGUMENTS = { domain: 1, label: 2 };
const CALM = 3000, BUSY = 1000, LOST = 5000; // milliseconds between two looks at the server

const actions = {
  ...Object.assign({}, ...[adapt, domain, jobs, label, overview, predict, serving].map((part) => part.actions)),
  async "sign-in"(form) {
    useToken(form.elements.token.value.trim());
    await look();
    if (state.signIn) throw new Error("The server does not know this token.");
    arrive();
  },
  "sign-out"() {
    forget();
    changed();
  },
};

/** Forget the token and all that was seen with it. */
function forget() {
  useToken("");
  Object.assign(state, { server: null, domains: null, jobs: null, signIn: true });
}

// -- looking at the server -------------------------------------------------------------------------------------

let timer = 0;
let looking = null;

/** Ask the server how things are, now; one look at a time. */
function look() {
  looking ??= ask().finally(() => { looking = null; });
  return looking;
}

async function ask() {
  clearTimeout(timer);
  let pause = CALM;
  try {
    state.server ??= await get("/v1/server");
    state.signIn = false;
    if (state.server.role === "operate") await operate();
    else state.route = routeOf("");
    at("offline").hidden = true;
    if (state.jobs?.some(isOpen)) pause = BUSY;
  } catch (error) {
    pause = LOST;
    if (error.status === 401) forget();
    else if (error.status) complain(error);
    else {
      at("offline").textContent = "The server does not answer. What you see may be out of date.";
      at("offline").hidden = false;
    }
  }
  changed();
  if (!state.signIn) timer = setTimeout(() => (document.hidden ? null : look()), pause);
}

async function operate() {
  const { view, args } = state.route;
  const more = Promise.resolve(VIEWS[view].load?.(args)).then(() => "", (error) => {
    if (error.status !== 404) throw error;
    return error.message;
  });
  const [domains, found, missing] = await Promise.all([get("/v1/domains"), get("/v1/jobs"), more]);
  if (state.route.view === view) state.missing = missing;
  jobs.announce(state.jobs, found);
  setDomains(domains);
  state.jobs = found;
}

// -- drawing ---------------------------------------------------------------------------------------------------

function draw() {
  const { server, route: { view, args } } = state;
  render(at("nav"), server && links(server));
  render(at("who"), server && hasToken() && who(server));
  render(at("main"), state.signIn ? signIn() : server ? VIEWS[view].view(args) : h("p.muted", "Loading…"));
}

const who = ({ you }) => [h("bdi.muted", you), button("quiet", { click: "sign-out" }, "Sign out")];

function links({ role }) {
  const pages = { ...(role === "operate" && { "": "Domains", jobs: "Adaptations" }), predict: "Predict" };
  const running = state.jobs?.filter(isOpen).length ?? 0;
  const here = { domain: "", label: "" }[state.route.view] ?? state.route.view;
  return Object.entries(pages).map(([view, name]) =>
    h("a", { href: `#/${view}`, "aria-current": view === here ? "page" : null }, name,
      view === "jobs" && running > 0 && h("span.badge", running, h("span.unseen", " running"))));
}

const signIn = () =>
  h("section.card.sign-in", { data: { key: "sign-in" } },
    h("h1", "Sign in"),
    h("p.muted", "This server needs a token. It stays in this tab until you close it."),
    h("form", { data: { submit: "sign-in" } },
      h("label.field", "Token", h("input", { name: "token", type: "password", required: true, autocomplete: "off" })),
      h("button.button.primary", "Sign in")));

// -- where events go -------------------------------------------------------------------------------------------

/** Do what an element is for; whatever goes wrong becomes a message. */
async function act(name, element, event) {
  try {
    const done = actions[name](element, event);
    if (done instanceof Promise) {
      await done;
      if (state.server) await (looking ?? Promise.resolve()).then(look);
    }
  } catch (error) {
    if (error.status === 401) await look();
    else complain(error);
  }
}

for (const kind of ["click", "submit", "input", "change"]) {
  document.addEventListener(kind, (event) => {
    const element = event.target.closest?.(`[data-${kind}]`);
    if (!element) return;
    if (kind === "submit") event.preventDefault();
    act(element.dataset[kind], kind === "change" && element.tagName !== "FORM" ? event.target : element, event);
  });
}

for (const kind of ["dragover", "drop", "dragleave"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault(); // else the browser would leave the page for a file that falls beside the target
    const element = event.target.closest?.("[data-drop]");
    element?.classList.toggle("over", kind === "dragover");
    if (element && kind === "drop") act(element.dataset.drop, element, event);
  });
}

document.addEventListener("keydown", (event) => {
  if (state.route.view === "label" && !event.target.closest("input, dialog")) label.key(event);
});

/** Show the page of the address. */
function arrive() {
  const before = state.route;
  Object.assign(state, { route: routeOf(location.hash), missing: "" });
  if (before.view === "label") label.leave();
  draw();
  scrollTo(0, 0);
  return (looking ?? Promise.resolve()).then(look);
}

function routeOf(hash) {
  if (state.server?.role === "predict") return { view: "predict", args: [] }; // it may see nothing else
  try {
    const [view, ...args] = hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
    if (Object.hasOwn(VIEWS, view) && args.length === (ARGUMENTS[view] ?? 0)) return { view, args };
  } catch { /* an address that cannot be decoded is no page of ours */ }
  return { view: "", args: [] };
}

onChange(draw);
addEventListener("hashchange", () => {
  if (location.hash === "#main") return; // the link that skips to the content
  arrive();
  at("main").focus({ preventScroll: true });
});
addEventListener("pagehide", () => label.leave());
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
arrive();
