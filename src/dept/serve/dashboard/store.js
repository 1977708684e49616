// What the page knows. Views are functions of it; whoever changes it calls `changed`.

export const state = {
  server: null, // GET /v1/server
  domains: null, // GET /v1/domains; null until it is known
  jobs: null,
  route: { view: "", args: [] },
  missing: "", // why the page of this address has nothing to show
  signIn: false, // whether a token is needed
};

/** Images per minute of each domain as the page has seen them, the latest last. */
export const traffic = new Map();
const SEEN = 60;

let draw = () => {};
let waiting = false;

/** What to do when something changed. */
export const onChange = (does) => { draw = does; };

/** Draw again, once, soon. */
export function changed() {
  if (waiting) return;
  waiting = true;
  queueMicrotask(() => { waiting = false; draw(); });
}

/** Take over the domains as they are now. */
export function setDomains(domains) {
  state.domains = domains;
  for (const { name, images_per_minute: rate } of domains) {
    traffic.set(name, [...(traffic.get(name) ?? []), rate].slice(-SEEN));
  }
}

/** One domain. */
export const domainOf = (name) => state.domains?.find((domain) => domain.name === name);

/** Whether a job has not ended. */
export const isOpen = (job) => ["queued", "running", "interrupted"].includes(job.state);
