// The dialog that starts an adaptation.

import { upload } from "./api.js";
import { at, h, render } from "./dom.js";
import { imagesOf } from "./files.js";
import { bytes, some } from "./format.js";
import { say } from "./messages.js";
import { state } from "./store.js";

const MOST = 1000; // files that the server takes in one form
let chosen = [];

export const actions = {
  "open-adapt"({ dataset: { domain } }) {
    const form = at("adapt").querySelector("form"), { folders, offline_methods: methods } = state.server;
    form.reset();
    form.elements.domain.value = domain ?? "";
    const names = state.domains.map(({ name }) => name).filter((name) => name !== "source");
    const method = (value) => h("option", { value }, value === "auto" ? "auto: try several" : value);
    render(at("adapt-domains"), names.map((value) => h("option", { value })));
    render(form.elements.method, methods.map(method));
    at("adapt-folder").hidden = !folders.length;
    form.elements.folder.placeholder = folders[0] ?? "";
    choose([]);
    complain("");
    at("adapt").showModal();
  },
  "close-adapt": () => at("adapt").close(),
  async "adapt-images"(element, event) {
    choose(await imagesOf(event));
  },
  async adapt(form) {
    const { domain, folder, method, max_iters: steps, promote } = form.elements;
    if (!chosen.length && !folder.value) return complain("Choose the images to adapt to.");
    const body = new FormData();
    body.set("domain", domain.value.trim());
    body.set("method", method.value);
    body.set("promote", promote.checked ? "improved" : "never");
    if (steps.value) body.set("max_iters", steps.value);
    if (chosen.length) for (const file of chosen) body.append("images", file, file.name);
    else body.set("folder", folder.value);
    await start(form, body);
  },
};

function choose(files) {
  chosen = thinned(files);
  const size = chosen.reduce((sum, file) => sum + file.size, 0), most = state.server.limits.max_upload_bytes;
  const words = chosen.length < files.length ? `${MOST} of ${some(files.length, "image")}` : some(files.length, "image");
  at("adapt-chosen").textContent = files.length ? words : "Drop images or folders here";
  at("adapt-size").textContent = files.length ? bytes(size) : "";
  complain(size > most ? `Too large: this server takes ${bytes(most)} at once.` : "");
}

// As many as may be sent, at even distances: folders are often in the order of time.
function thinned(files) {
  const kept = (i) => Math.floor((i * MOST) / files.length);
  return files.length <= MOST ? files : files.filter((_, i) => kept(i + 1) > kept(i));
}

function complain(text) {
  at("adapt-error").textContent = text;
  at("adapt-error").hidden = !text;
}

async function start(form, body) {
  const bar = at("adapt-sent"), button = form.querySelector("[type=submit]");
  bar.hidden = false;
  button.disabled = true;
  complain("");
  try {
    const job = await upload("/v1/jobs", body, (share) => { bar.value = share; });
    at("adapt").close();
    location.hash = "#/jobs";
    say(`Adaptation of ${job.domain} to ${some(job.images, "image")} has started.`);
  } catch (error) {
    complain(error.message);
  } finally {
    bar.hidden = true;
    bar.value = 0;
    button.disabled = false;
  }
}
