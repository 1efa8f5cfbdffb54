// The dashboard: passes each view from the feed to the panels, and says when there is none.

import { askForKey, setUpTheme } from "../frame.js";
import { untilLoaded } from "../loading.js";
import { loadKey, saveKey } from "../store.js";
import { $, make } from "../dom.js";
import { BatchTable } from "./batch.js";
import { BlockMap } from "./blocks.js";
import { HistogramChart, TimeChart } from "./charts.js";
import { Feed } from "./feed.js";
import { QueueTable } from "./queue.js";
import { StepParts } from "./steps.js";
import { bytes, count, duration, rate, REASONS } from "./words.js";

const RATE_SECONDS = 2; // tiles and parts are means over this time
const SAMPLE_SECONDS = 1;
const KEPT_SECONDS = 330;

let about = null;
let recent = []; // { time, totals } of the views in the last RATE_SECONDS, and of one before
let samples = []; // [time, prefill tokens, generated tokens]
let lastSeen = 0; // on the page's clock
let stateWords = "";

setUpTheme();
const batch = new BatchTable($("batch-rows"), $("batch-scale"));
const queue = new QueueTable($("queue-rows"));
const blocks = new BlockMap($("blocks"), $("blocks-tip"));
const generating = new TimeChart($("chart-generating"));
const reading = new TimeChart($("chart-reading"));
const steps = new StepParts($("step-rows"), $("step-note"));
const firstToken = new HistogramChart($("first-token"), $("first-note"), "requests");
const betweenTokens = new HistogramChart($("between-tokens"), $("between-note"), "tokens");
const feed = new Feed(received, showState);

function received(frame) {
  if (frame.type === "about") begin(frame);
  else if (about) show(frame);
}

function begin(frame) {
  about = frame;
  recent = [];
  samples = frame.history;
  batch.clear();
  queue.clear();
  $("model").textContent = frame.model;
  document.title = `${frame.model} – Triolet dashboard`;
  showMemory(frame.memory);
}

function show(view) {
  lastSeen = performance.now();
  $("board").dataset.live = "true";
  remember(view);
  showTiles(view);
  const shown = batch.update(view.rows, new Set(view.queue.map((row) => row.sequence)), lastSeen);
  $("batch-empty").hidden = shown > 0;
  more("batch-more", view.running + view.parked - view.rows.length);
  queue.update(view, about.limits);
  $("queue-empty").hidden = view.queue.length > 0;
  $("queue-note").textContent = reasons(view);
  more("queue-more", view.waiting - view.queue.length);
  showBlocks(view);
  firstToken.update(view.first_token);
  betweenTokens.update(view.between_tokens);
  showWorker(view);
  showNotice(view);
}

function more(id, hidden) {
  $(id).hidden = hidden <= 0;
  $(id).textContent = `… and ${count(hidden)} more`;
}

// Rates

function remember({ time, totals }) {
  recent.push({ time, totals });
  while (recent.length > 2 && recent[1].time <= time - RATE_SECONDS) recent.shift();
  if (samples.length === 0 || time - samples.at(-1)[0] >= SAMPLE_SECONDS) {
    samples.push([time, totals.prefill_tokens, totals.generated_tokens]);
    while (samples[0][0] < time - KEPT_SECONDS) samples.shift();
    const window = generating.update(samples.map(([at, , tokens]) => [at, tokens]), time);
    $("axis-begin").textContent = `${window / 60} min ago`;
    reading.update(samples.map(([at, tokens]) => [at, tokens]), time);
  }
}

// How much each counter grew in the last RATE_SECONDS.
function change() {
  const [first, last] = [recent[0], recent.at(-1)];
  const grown = { seconds: last.time - first.time };
  for (const [name, value] of Object.entries(last.totals)) {
    if (typeof value === "number") grown[name] = value - first.totals[name];
  }
  return grown;
}

function showTiles(view) {
  const { totals } = view;
  const grown = change();
  const perSecond = (tokens) => (grown.seconds > 0 ? rate(tokens / grown.seconds) : "–");
  $("tile-generating").textContent = perSecond(grown.generated_tokens);
  $("sub-generating").textContent = `${count(totals.generated_tokens)} since the start`;
  $("tile-reading").textContent = perSecond(grown.prefill_tokens);
  $("sub-reading").textContent = `${count(totals.prefill_tokens)} since the start`;
  const rows = Math.min(about.limits.max_running, about.limits.max_step_tokens);
  $("tile-batch").textContent = count(view.running);
  $("unit-batch").textContent = `of ${count(rows)} rows`;
  $("sub-batch").textContent = [view.parked && `${count(view.parked)} parked`, `${count(view.live)} ${view.live === 1 ? "request" : "requests"} open`].filter(Boolean).join(", ");
  $("tile-waiting").textContent = count(view.waiting);
  $("sub-waiting").textContent = reasons(view) || "nobody";
  const { owned, cached, total } = view.blocks;
  const used = total ? (100 * owned) / total : 0;
  $("tile-blocks").textContent = used > 0 && used < 9.95 ? used.toFixed(1) : Math.round(used);
  $("sub-blocks").textContent = `${count(owned)} of ${count(total)} blocks; ${count(cached)} cached`;
  const step = steps.update(grown.steps > 0 ? grown : null);
  if (step !== null) $("tile-step").textContent = (step * 1000).toFixed(step < 0.00995 ? 2 : 1);
  $("sub-step").textContent = `${count(totals.steps)} since the start`;
}

function reasons(view) {
  const entries = Object.entries(view.waiting_by_reason).sort(([, a], [, b]) => b - a);
  return entries.map(([reason, number]) => `${count(number)} for ${REASONS[reason] ?? reason}`).join(", ");
}

// Panels without their own class

function showBlocks(view) {
  const map = view.blocks;
  blocks.update(map, view.rows);
  for (const kind of ["free", "cached", "owned"]) $(`blocks-${kind}`).textContent = count(map[kind]);
  const size = about.memory.block_size;
  $("blocks-note").textContent = map.blocks_per_cell === 1 ? `a cell is a block of ${size} tokens` : `a cell is ${count(map.blocks_per_cell)} blocks of ${size} tokens`;
  const { prefix_query_tokens: asked, prefix_hit_tokens: found, preemptions, evictions } = view.totals;
  $("fact-hits").textContent = asked ? `${Math.round((100 * found) / asked)} %` : "–";
  $("fact-preemptions").textContent = count(preemptions);
  $("fact-evictions").textContent = count(evictions);
}

function showMemory({ weights_bytes, workspace_bytes, kv_bytes, sequences_at_full_length }) {
  const parts = [["Weights", "weights", weights_bytes], ["Workspace", "workspace", workspace_bytes], ["KV cache", "kv", kv_bytes]];
  const whole = weights_bytes + workspace_bytes + kv_bytes || 1;
  const entries = parts.map(([name, kind, size]) => {
    const bar = make("i", kind);
    bar.style.width = `${(100 * size) / whole}%`;
    const item = make("li");
    item.append(make("i", `key ${kind}`), `${name} `, make("b", "", bytes(size)));
    return [bar, item];
  });
  $("memory").replaceChildren(...entries.map(([bar]) => bar));
  $("memory-legend").replaceChildren(...entries.map(([, item]) => item));
  $("memory").setAttribute("aria-label", parts.map(([name, , size]) => `${name} ${bytes(size)}`).join(", "));
  $("worker-note").textContent = `room for ${sequences_at_full_length.toFixed(0)} at full length`;
}

function showWorker({ worker, totals, time, web }) {
  const ended = Object.values(totals.finished).reduce((sum, number) => sum + number, 0);
  const refused = Object.values(totals.refused).reduce((sum, number) => sum + number, 0);
  about.since ??= time - about.uptime; // on the server's clock
  facts($("worker-facts"), {
    State: worker.status,
    Process: worker.pid === null ? "none" : `${worker.pid}, in memory ${bytes(worker.resident_bytes)}`,
    Restarts: count(worker.restarts),
    "Steps in flight": worker.steps_in_flight ? `${worker.steps_in_flight}, the oldest for ${duration(worker.step_age)}` : "none",
    Requests: `${count(totals.accepted)} accepted, ${count(ended)} ended, ${count(refused)} errors`,
    "Server up": duration(time - about.since),
    ...(web && { "Web processes": webProcesses(web) }),
  });
  const { architecture, parameters, device, dtype, quantize } = about;
  const size = parameters >= 1e9 ? `${(parameters / 1e9).toFixed(1)} B` : `${(parameters / 1e6).toFixed(1)} M`;
  $("engine").textContent = [`${architecture}, ${size}`, device, quantize === "none" ? dtype : quantize].join(" · ");
}

function webProcesses({ count: number, silent, restarts, resident_bytes }) {
  const parts = [count(number), `in memory ${bytes(resident_bytes)}`];
  if (silent) parts.push(`${count(silent)} silent`);
  if (restarts) parts.push(`${count(restarts)} started again`);
  return parts.join(", ");
}

function facts(list, values) {
  Object.entries(values).forEach(([name, text], index) => {
    const old = list.children[index];
    if (old) {
      if (old.lastChild.textContent !== text) old.lastChild.textContent = text;
      return;
    }
    const entry = make("div");
    entry.append(make("dt", "", name), make("dd", "", text));
    list.append(entry);
  });
}

// The connection

function showNotice(view) {
  const { ready, status, reason } = view.worker;
  notice(ready ? "" : `The engine is ${status}${reason ? `: ${reason}` : ""}.`, false);
}

function notice(text, retry) {
  if ($("notice-text").textContent !== text) $("notice-text").textContent = text;
  $("notice").hidden = text === "";
  $("notice-retry").hidden = !retry;
}

function showState(state, seconds, message) {
  stateWords = {
    connecting: "Connecting…",
    ready: "Live",
    waiting: `Trying again in ${seconds} s`,
    full: `Trying again in ${seconds} s`,
    refused: "Key needed",
  }[state];
  $("status").dataset.state = state;
  $("status-text").textContent = stateWords;
  if (state !== "ready") $("board").dataset.live = "false";
  if (state === "waiting" || state === "full") {
    const what = state === "full" ? message : "The connection to the server was lost.";
    const age = Math.max(1, Math.round((performance.now() - lastSeen) / 1000));
    notice(lastSeen ? `${what} These are the figures of ${age < 60 ? `${age} s` : duration(age)} ago.` : what, true);
  }
  if (state === "refused") askAndConnect();
}

async function askAndConnect() {
  saveKey(await askForKey(loadKey() !== null));
  await untilLoaded(loadKey());
  feed.connect(loadKey());
}

// A server that wants a key waits for it on the socket; over HTTP it says at once that a key is needed.
async function start() {
  const key = loadKey();
  try {
    const answer = await fetch("version", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
    if (answer.status === 401) {
      showState("refused");
      return;
    }
  } catch {
    // the socket keeps trying, and says so
  }
  await untilLoaded(key);
  feed.connect(key);
}

$("notice-retry").addEventListener("click", () => feed.retryNow());
start();
