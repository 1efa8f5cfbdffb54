// The WebSocket to /v1/dashboard, and a new one when it breaks. A background tab closes it: a server without watchers
// does no work for the dashboard.
//
// States given to `onState`: "connecting", "ready" (with the first frame), "waiting" (with the seconds until the next
// attempt), "full" (the same, with the message of a server that refuses for now), "refused" (the server wants a key).

import { socketAddress } from "../address.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;
const UNSEEN_MS = 15_000; // a short visit to another tab costs no reconnection

export class Feed {
  #socket = null;
  #key = null;
  #onFrame;
  #onState;
  #wait = FIRST_WAIT_MS;
  #timer = 0;
  #unseen = 0;

  constructor(onFrame, onState) {
    this.#onFrame = onFrame;
    this.#onState = onState;
    addEventListener("online", () => this.retryNow());
    document.addEventListener("visibilitychange", () => this.#seen(!document.hidden));
  }

  connect(key = this.#key) {
    this.#key = key;
    clearTimeout(this.#timer);
    this.#drop();
    this.#onState("connecting");
    const socket = new WebSocket(socketAddress("v1/dashboard"));
    this.#socket = socket;
    socket.onopen = () => key && socket.send(JSON.stringify({ type: "auth", api_key: key }));
    socket.onmessage = (event) => socket === this.#socket && this.#received(JSON.parse(event.data));
    socket.onclose = () => socket === this.#socket && this.#again("waiting");
  }

  retryNow() {
    if (this.#socket === null && !document.hidden) this.connect();
  }

  #received(frame) {
    if (frame.type === "error") {
      const { code, message } = frame.error;
      this.#drop();
      if (code === "invalid_api_key") {
        this.#onState("refused");
      } else {
        this.#again("full", message);
      }
      return;
    }
    this.#wait = FIRST_WAIT_MS;
    if (frame.type === "about") this.#onState("ready");
    this.#onFrame(frame);
  }

  #again(state, message = "") {
    this.#socket = null;
    const wait = this.#wait * (0.75 + Math.random() / 2); // random, so that tabs do not all reconnect at once
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
    this.#onState(state, Math.max(1, Math.round(wait / 1000)), message);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.connect(), wait);
  }

  #drop() {
    const socket = this.#socket;
    this.#socket = null; // so that its close does not trigger a retry
    socket?.close();
  }

  #seen(visible) {
    clearTimeout(this.#unseen);
    if (visible) {
      this.retryNow();
    } else {
      this.#unseen = setTimeout(() => {
        clearTimeout(this.#timer);
        this.#drop();
      }, UNSEEN_MS);
    }
  }
}
