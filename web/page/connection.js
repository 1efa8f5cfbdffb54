// The connection to the server, its state in words, and the models it serves.

import { $ } from "./dom.js";
import { askForKey } from "./frame.js";
import { untilLoaded } from "./loading.js";
import * as server from "./server.js";
import { EngineSocket } from "./socket.js";
import { loadKey, saveKey } from "./store.js";

// Returns { socket, start(), models(), refresh() }: the models as /v1/models listed them last, and what asks again.
// `onModels` hears of a list.
export function setUpConnection(onModels) {
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
    if (state === "ready" && !listed) refresh(); // the next connection asks again
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
    if (models.length === 0) $("model-name").textContent = "No model";
    onModels();
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

  const refresh = () => loadModels().catch(() => {});
  return { socket, start, models: () => models, refresh };
}
