// #/label/DOMAIN/VERSION Images on which before and after disagree: two keys say which of the two is right.

import { change, get, path } from "./api.js";
import { outcome } from "./charts.js";
import { at, button, h } from "./dom.js";
import { some } from "./format.js";
import { complain } from "./messages.js";
import { promoteButton, toDomain } from "./serving.js";
import { changed, domainOf, state } from "./store.js";

const PAUSE = 600; // milliseconds without a key after which answers are sent
let check = null; // what is labelled: {where, domain, version, questions, verdict, …}
let answers = []; // before, after, neither or "", as they are on the screen
let unsent = {};
let sending = Promise.resolve();
let timer = 0;
let now = 0;
let finished = false;

const place = ([domain, version]) => path("domains", domain, "versions", version);

/** Fetch the images, once. */
export async function load(args) {
  const where = place(args);
  if (check?.where === where) return;
  const found = await get(`${where}/check`);
  check = { ...found, where, domain: args[0], version: Number(args[1]) };
  answers = found.questions.map(({ right }) => right);
  unsent = {};
  now = Math.max(0, answers.indexOf(""));
  finished = !answers.includes("");
}

/** Send what is left, and forget the images. */
export function leave() {
  flush();
  check = null;
}

// What the left and the right button stand for: sides are swapped for about half of the images.
const meaning = ({ swapped }) => (swapped ? { left: "after", right: "before" } : { left: "before", right: "after" });

function choose(side) {
  const question = check.questions[now];
  answers[now] = side === "neither" ? side : meaning(question)[side];
  unsent[question.image] = answers[now];
  clearTimeout(timer);
  timer = setTimeout(flush, PAUSE);
  if (now + 1 < answers.length) now += 1;
  else if (!answers.includes("")) finish();
  changed();
}

// One request after the other: an older answer must not arrive last.
function flush() {
  clearTimeout(timer);
  if (!check || !Object.keys(unsent).length) return sending;
  const labels = unsent, of = check;
  unsent = {};
  sending = sending.then(() => change("POST", `${of.where}/labels`, { labels }, { keepalive: true })).then(
    ({ verdict }) => { of.verdict = verdict; },
    (error) => {
      unsent = { ...labels, ...unsent };
      complain(error);
    });
  return sending.then(changed);
}

async function finish() {
  finished = true;
  await flush();
  at("main").focus();
}

function back() {
  if (finished) finished = false;
  else now = Math.max(0, now - 1);
  changed();
}

export const actions = {
  choose: ({ dataset: { side } }) => choose(side),
  "label-go"({ dataset: { image } }) {
    now = Number(image);
    changed();
  },
  "label-back": back,
  "label-finish": finish,
};

const KEYS = {
  arrowleft: () => choose("left"), f: () => choose("left"), arrowright: () => choose("right"), j: () => choose("right"),
  arrowdown: () => choose("neither"), n: () => choose("neither"), arrowup: back, backspace: back,
};

/** A key that was pressed on this page. */
export function key(event) {
  const act = KEYS[event.key.toLowerCase()];
  if (!act || !check?.questions.length || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (finished && act !== back) return;
  event.preventDefault();
  act();
}

export function view(args) {
  const [domain, version] = args;
  return h("section.label-page", { data: { key: "label" } },
    h("p.back", h("a", { href: toDomain(domain) }, "← ", h("bdi", domain))),
    h("h1", "Which label is right?"),
    h("p.muted", `The source model and version ${version} disagree on these images. `,
      "Which of them said what is hidden, and changes sides at random."),
    body(args));
}

function body(args) {
  if (check?.where !== place(args)) return h("p.card.nothing", state.missing || "Loading…");
  if (!check.questions.length) return h("p.card.nothing", "There is nothing to label: before and after agree.");
  return finished ? result(check) : question(check.questions[now]);
}

function question(item) {
  const open = answers.filter((answer) => !answer).length, stop = open ? `Stop here, ${open} left` : "See the verdict";
  return h("div.card.labelling",
    h("ol.marks", { "aria-label": "Images" }, answers.map(mark)),
    h("figure",
      h("img", { src: item.picture, alt: `Image ${now + 1}` }),
      h("figcaption.muted",
        h("span", { role: "status" }, `${now + 1} of ${answers.length}`), " · ", h("bdi", item.image))),
    h("div.choices",
      choice("left", item, "← or F"), choice("right", item, "→ or J"), choice("neither", item, "↓ or N")),
    h("div.buttons",
      button("", { click: "label-back" }, "Back", { disabled: now === 0 }),
      button("", { click: "label-finish" }, stop, { disabled: open === answers.length })),
    h("p.muted", "Answers are saved as you go. You can stop at any time: the order is random."));
}

function choice(side, item, keys) {
  const means = meaning(item)[side] ?? side, text = side === "neither" ? "neither, or I cannot tell" : item[means];
  const pressed = String(answers[now] === means);
  return h(`button.choice.${side}`, { type: "button", "aria-pressed": pressed, data: { click: "choose", side } },
    h("bdi", text), h("kbd", keys));
}

function mark(answer, i) {
  const here = i === now, data = { click: "label-go", image: i };
  const told = { "aria-label": `Image ${i + 1}${answer ? ", labelled" : ""}`, "aria-current": here ? "true" : null };
  return h("li", h(`button.${answer ? "done" : ""}.${here ? "now" : ""}`, { type: "button", data, ...told }));
}

function result({ verdict, domain: name, version, images, disagreeing }) {
  const domain = domainOf(name), labelled = answers.filter(Boolean).length;
  return h("div.card",
    h("h2", `${labelled} of ${some(answers.length, "image")} labelled`),
    h("p.muted", `The two models disagree on ${disagreeing} of ${some(images, "image")}.`),
    verdict ? outcome(verdict) : h("p.muted", "Judging…"),
    h("div.buttons",
      button("", { click: "label-back" }, "Back to the images"),
      domain && verdict && promoteButton(domain, { number: version, verdict })));
}
