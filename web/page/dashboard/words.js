// Numbers and reasons in words, and the colour of a request. Knows nothing about the page.

const GOLDEN_ANGLE = 137.508; // consecutive requests get very different hues

export const colourOf = (request) => `oklch(0.66 0.13 ${((request * GOLDEN_ANGLE) % 360).toFixed(1)})`;

export const count = (number) => number.toLocaleString("en");

export function rate(perSecond) {
  return perSecond >= 100 || perSecond === 0 ? count(Math.round(perSecond)) : perSecond.toFixed(perSecond < 10 ? 1 : 0);
}

export function duration(seconds) {
  if (seconds < 0.00995) return `${(seconds * 1000).toFixed(seconds < 0.000995 ? 2 : 1)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)} ${units[unit]}`;
}

const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

// What a request in the queue waits for, with the planner's numbers.
export function reason(row, view, limits) {
  switch (row.blocked) {
    case "rows":
      return `a row: all ${count(Math.min(limits.max_running, limits.max_step_tokens))} are taken`;
    case "blocks":
      return `${plural(row.blocks_wanted ?? 0, "KV block")}: ${count(row.blocks_available ?? 0)} available beside ${count(view.running)} kept for running rows`;
    case "key":
      return "others of its API key, which hold all that it may have of the KV cache";
    case "budget":
      return `the next step: this one's ${count(limits.max_step_tokens)} tokens are spent`;
    case "step":
      return "the next step: it came after this one was planned";
    case "credit":
      return `its reader, ${plural(row.tokens_behind ?? 0, "token")} behind`;
    case "grammar":
      return "the grammar of its answer, which the worker builds";
    case "adapter":
      return "its LoRA adapter, which the worker loads";
    case "suspect":
      return "a step of its own, as a worker died computing it";
    case "prefix":
      return "a running request that computes the same prefix";
    case "unread":
      return "its last token, on its way from the worker";
    case "worker":
      return view.worker.reason ? `the worker: ${view.worker.reason}` : "the worker";
    default:
      return "its turn: those before it come first";
  }
}

export const REASONS = {
  rows: "a row",
  blocks: "KV blocks",
  key: "their key's KV blocks",
  budget: "tokens of a step",
  step: "the next step",
  credit: "their reader",
  grammar: "a grammar",
  adapter: "a LoRA adapter",
  suspect: "a step of their own",
  prefix: "a shared prefix",
  unread: "a token on its way",
  worker: "the worker",
  order: "their turn",
};
