// Why an answer has not begun, in words; from the server's explanation. Pure.

const PLACES = {
  rows: "all places in the batch are taken",
  blocks: "the cache is full",
  budget: "this step is full",
  step: "the next step is not planned yet",
  share: "another API key has its turn",
  prefix: "another request computes the same beginning",
  order: "those before it come first",
};

export function waitingWords({ state, blocked_on: blocked, position, eta_ms: eta, prefill }) {
  if (prefill && prefill.computed < prefill.total && state !== "waiting") {
    return `Reading the conversation: ${prefill.computed.toLocaleString("en")} of ${prefill.total.toLocaleString("en")} tokens`;
  }
  if (state !== "waiting") return "";
  const details = [position && `position ${position}`, eta !== null && `about ${Math.max(1, Math.round(eta / 1000))} s`];
  const known = details.filter(Boolean).join(", ");
  const why = blocked?.kind === "worker" ? blocked.reason || "the engine is being started again" : PLACES[blocked?.kind];
  return `Waiting${why ? ` because ${why}` : ""}${known ? ` (${known})` : ""}`;
}
