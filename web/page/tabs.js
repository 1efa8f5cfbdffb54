// What the tabs of this browser say to each other, and which of them does what only one may do.

const channel = new BroadcastChannel("triolet");
const listeners = new Map(); // kind -> handler

channel.addEventListener("message", ({ data: { kind, ...said } }) => listeners.get(kind)?.(said));

export const tell = (kind, said) => channel.postMessage({ kind, ...said });
export const listen = (kind, handler) => listeners.set(kind, handler);

// Runs `work` once no other tab holds `name`, and holds it until the promise of `work` is settled or this tab is closed.
// `fresh`: no other tab can know this name yet.
export function claim(name, work, { fresh = false } = {}) {
  return navigator.locks ? navigator.locks.request(`triolet ${name}`, work) : claimByAsking(name, work, fresh);
}

// Browsers have no Web Locks on a page that came over plain HTTP from another machine. There, tabs ask each other.

const ASK_EVERY_MS = 1000;
const rank = Math.random(); // of two tabs that ask at the same time, the higher one gets it
const held = new Set();
const wanted = new Set();
const taken = new Set(); // names that another tab claims

listen("who holds", ({ name, asking }) => {
  if (held.has(name) || (wanted.has(name) && rank > asking)) tell("mine", { name });
});
listen("mine", ({ name }) => taken.add(name));

async function claimByAsking(name, work, fresh) {
  wanted.add(name);
  do {
    if (fresh) break;
    taken.delete(name);
    tell("who holds", { name, asking: rank });
    await new Promise((resolve) => setTimeout(resolve, ASK_EVERY_MS));
  } while (taken.has(name));
  wanted.delete(name);
  held.add(name);
  try {
    return await work();
  } finally {
    held.delete(name);
  }
}
