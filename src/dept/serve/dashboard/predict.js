// #/predict Label images with a domain's adapter.

import { upload } from "./api.js";
import { h, s } from "./dom.js";
import { imagesOf } from "./files.js";
import { ms, percent, some } from "./format.js";
import { versionName } from "./serving.js";
import { changed, state } from "./store.js";

const SHOWN = 3; // classes per image
let results = []; // {key, url, name} of the images, and the prediction once it is there
let number = 0; // for keys
let domain = "";
let summary = "";

export const actions = {
  "predict-domain"(element) {
    domain = element.value;
  },
  async "predict-images"(element, event) {
    await predict(await imagesOf(event));
    if (element.value) element.value = ""; // so that the same file can be chosen again
  },
};

async function predict(files) {
  for (const { url } of results) URL.revokeObjectURL(url);
  results = files.map((file) => ({ key: number++, url: URL.createObjectURL(file), name: file.name }));
  const given = results, times = [], most = state.server.limits.max_images;
  summary = files.length ? `Predicting ${some(files.length, "image")}…` : "None of these files is an image.";
  changed();
  try {
    for (let start = 0; start < files.length; start += most) {
      const { predictions, timing } = await ask(files.slice(start, start + most));
      predictions.forEach((prediction, i) => Object.assign(given[start + i], prediction));
      times.push(timing);
    }
    const sum = (name) => ms(times.reduce((total, timing) => total + timing[name], 0));
    const took = `${sum("total_ms")} ms (model: ${sum("forward_ms")} ms)`;
    if (times.length) summary = `${some(files.length, "image")} in ${took}.`;
  } catch (error) {
    summary = "";
    throw error;
  } finally {
    changed();
  }
}

function ask(files) {
  const form = new FormData(), query = new URLSearchParams({ topk: SHOWN });
  if (domain) query.set("domain", domain);
  for (const file of files) form.append("images", file, file.name);
  return upload(`/v1/predict?${query}`, form);
}

export function view() {
  const { routing, domains } = state.server; // domains may be newer in the list, which not everybody may see
  const names = state.domains?.map(({ name }) => name).filter((name) => name !== "source") ?? domains;
  const first = routing ? "the nearest domain of each image" : "no domain: source model";
  const option = (value, name) => h("option", { value, selected: value === domain, data: { key: `${value}.` } }, name);
  const chooser = { type: "file", multiple: true, accept: "image/*", data: { change: "predict-images" } };
  return h("section", { data: { key: "predict" } },
    h("div.head", h("div", h("h1", "Predict"), h("p.muted", "Images go to this server and nowhere else."))),
    h("div.card",
      h("label.field", "Domain",
        h("select", { name: "domain", data: { change: "predict-domain" } },
          option("", first), option("source", "source model"), names.map((name) => option(name, name)))),
      h("div.drop", { data: { drop: "predict-images" } },
        h("p", h("strong", "Drop images here")),
        h("label.button.primary", "Choose images", h("input.unseen", chooser)))),
    h("p.muted", { role: "status" }, summary),
    h("ul.predictions", results.map(card)));
}

function card({ key, url, name, error, label, topk, domain: by, version, new_domain: unknown }) {
  return h("li.card", { data: { key } },
    h("img", { src: url, alt: "" }),
    h("div",
      h("p.muted.name", h("bdi", name)),
      error && h("p.error", error),
      label && h("p.label", h("bdi", label)),
      topk && h("ul.topk", topk.map(bar)),
      by && h("p.muted", h("bdi", by === "source" ? "source model" : by), version > 0 && `, ${versionName(version)}`),
      unknown && h("p", h("span.pill.warning", "new domain"))));
}

const bar = ({ label, probability }) =>
  h("li", h("bdi", label), h("span", percent(probability)),
    s("svg.share", { "aria-hidden": "true" },
      s("rect", { width: `${(100 * probability).toFixed(1)}%`, height: 3, rx: 1.5 })));
