// The server. The token lives in this tab alone, and travels in the Authorization header alone.

const KEY = "dept-token";
let token = sessionStorage.getItem(KEY) ?? "";

/** A request that the server refused, with its sentence. */
export class Refused extends Error {
  constructor(status, detail) {
    super(sentence(detail) || `The server answered with status ${status}.`);
    this.status = status;
  }
}

// A refusal is a sentence, or the list of the fields that are wrong.
const sentence = (detail) =>
  Array.isArray(detail) ? detail.map(({ loc, msg }) => `${loc?.at(-1)}: ${msg}`).join("; ") : detail;

/** Use a token from now on; empty to forget it. */
export function useToken(given) {
  token = given;
  if (given) sessionStorage.setItem(KEY, given);
  else sessionStorage.removeItem(KEY);
}

/** Whether there is one. */
export const hasToken = () => token !== "";

const authorization = () => (token ? { Authorization: `Bearer ${token}` } : {});

/** A path of parts that may be anything. */
export const path = (...parts) => "/v1/" + parts.map(encodeURIComponent).join("/");

async function send(method, where, { headers, ...options } = {}) {
  const all = { ...authorization(), ...headers };
  const response = await fetch(where, { method, headers: all, credentials: "omit", ...options });
  if (response.status === 204) return null;
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, answer.detail);
  return answer;
}

/** GET. */
export const get = (where) => send("GET", where);

/** POST, PUT or DELETE, with JSON if there is a body. */
export function change(method, where, body, options = {}) {
  const json = { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  return send(method, where, body === undefined ? options : { ...json, ...options });
}

/** POST a form; `sent` is told the share that has left. (fetch cannot tell it, and uploads may take minutes.) */
export function upload(where, form, sent = () => {}) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", where);
    for (const [name, value] of Object.entries(authorization())) request.setRequestHeader(name, value);
    request.responseType = "json";
    request.upload.addEventListener("progress", ({ loaded, total }) => sent(loaded / total));
    request.addEventListener("error", () => reject(new Error("The connection broke during the upload.")));
    request.addEventListener("load", () => {
      if (request.status < 300) resolve(request.response);
      else reject(new Refused(request.status, request.response?.detail));
    });
    request.send(form);
  });
}
