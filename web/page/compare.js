// Two answers to one question, each with settings of its own. The record of what they answer names them, { pair: [first,
// second] }, until one is chosen. All the while both are versions of the answer, as tree.js has them. Pure.

import { SPECS } from "./settings-fields.js";

export const SIDES = ["First answer", "Second answer"];
const SHORT = 40; // characters of a value

// The settings of each answer that a question of this conversation gets: one, or two.
export const sidesOf = ({ comparing, settings, second = settings }) => (comparing ? [settings, second] : [settings]);

// The two answers that stand side by side at the end of a path; undefined where there is one.
export function pairAt(messages, path) {
  const last = path.at(-1);
  const pair = messages.get(last?.parent)?.pair?.map((id) => messages.get(id));
  return pair?.includes(last) && pair.every(Boolean) ? pair : undefined;
}

// How one request's settings differ from the other's, in words; "" where they do not. Both are { model, system, sampling }.
export function difference(one, other) {
  const parts = [];
  if (one.model !== other.model) parts.push(one.model);
  if (one.system !== other.system) parts.push(one.system ? `System prompt: ${short(one.system)}` : "No system prompt");
  for (const { name, label } of SPECS) {
    const [value, beside] = [one, other].map(({ sampling }) => sampling[name]);
    if (JSON.stringify(value) !== JSON.stringify(beside)) parts.push(`${label}: ${inWords(value)}`);
  }
  return parts.join(" · ");
}

const inWords = (value) => ({ undefined: "default", true: "on", false: "off" })[String(value)] ?? short(typeof value === "object" ? JSON.stringify(value) : String(value));
const short = (text) => (text.length > SHORT ? `${text.slice(0, SHORT)}…` : text);
