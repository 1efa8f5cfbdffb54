// The connection to the server, its state in words, and the models it serves.

import { $ } from "./dom.js";
import { askForKey } from "./frame.js";
import { untilLoaded } from "./loading.js";
import * as server from "./server.js";
import { EngineSocket } from "./socket.js";
import { loadKey, saveKey } from "./store.js";

const NO_MODEL = {};

// Returns { socket, start(), model() }: the last is the chosen model as /v1/models lists it. `onModel` hears of another.
export function setUpConnection(onModel) {
  let models = [];
  let listed = false; // by the server as it runs now
  const socket = new EngineSocket(showState, showEngine);

  function showState(state, seconds) {
    const words = {
      connecting: "Connecting…",
      ready: "Ready",
      waiting: `Connection lost. Trying again in ${seconds} s`,
      refused: "Key needed",
    };
    $("status").dataset.state = state;
    $("status-text").textContent = words[state];
    if (state === "waiting") listed = false;
    if (state === "ready" && !listed) loadModels().catch(() => {}); // the next connection asks again
    if (state === "refused") start(true);
  }

  // The worker is being loaded, or started again: `reason` is the whole story.
  function showEngine({ ready, status, reason, loading }) {
    const percent = loading?.share ? ` ${Math.floor(100 * loading.share)} %` : "";
    $("status").dataset.state = ready ? "ready" : "waiting";
    $("status").title = reason;
    $("status-text").textContent = ready ? "Ready" : `The model is ${status}${loading ? `: ${loading.stage}${percent}` : ""}`;
  }

  // False: the server wants another key.
  async function loadModels() {
    await untilLoaded(loadKey());
    try {
      models = await server.models();
    } catch (error) {
      if (error.status === 401) return false;
      throw error;
    }
    listed = true;
    const chosen = $("model").value;
    $("model").replaceChildren(...models.map(({ id }) => new Option(id, id, false, id === chosen)));
    $("model").hidden = models.length < 2;
    $("model-name").hidden = models.length > 1;
    $("model-name").textContent = models[0]?.id ?? "No model";
    onModel();
    return true;
  }

  async function start(wrongKey = false) {
    try {
      let accepted = !wrongKey && (await loadModels());
      while (!accepted) {
        saveKey(await askForKey(wrongKey || loadKey() !== null));
        wrongKey = false;
        accepted = await loadModels();
      }
    } catch {
      $("model-name").textContent = "No model yet"; // the socket keeps trying, and asks again once it is open
    }
    socket.connect(loadKey());
  }

  $("model").addEventListener("change", onModel);
  return { socket, start, model: () => models.find(({ id }) => id === $("model").value) ?? models[0] ?? NO_MODEL };
}
