// The WebSocket to /v1/stream: many requests over one socket, and a new socket when it breaks.
//
// States given to `onState`: "connecting", "ready", "waiting" (with the seconds until the next attempt), "refused" (the
// server wants a key). A request in flight when the socket breaks fails with the code `connection_lost`; one made while
// there is no socket is sent as soon as there is one.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;

export class EngineSocket {
  #socket = null;
  #key = null;
  #onState;
  #requests = new Map(); // id -> { frame, handlers, sent }
  #count = 0;
  #wait = FIRST_WAIT_MS;
  #timer = 0;

  constructor(onState) {
    this.#onState = onState;
    addEventListener("online", () => this.#retryNow());
    document.addEventListener("visibilitychange", () => document.hidden || this.#retryNow());
  }

  connect(key) {
    this.#key = key;
    clearTimeout(this.#timer);
    this.#socket?.close();
    this.#onState("connecting");
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/v1/stream`);
    this.#socket = socket;
    socket.onopen = () => this.#opened();
    socket.onmessage = (event) => this.#received(JSON.parse(event.data));
    socket.onclose = () => socket === this.#socket && this.#closed();
  }

  // handlers: started(frame), token(frame), finished(frame), failed(error)
  create(request, handlers) {
    this.#count += 1;
    const id = `r${this.#count}`;
    this.#requests.set(id, { frame: { type: "create", id, request }, handlers, sent: false });
    this.#sendPending();
    return id;
  }

  cancel(id) {
    const request = this.#requests.get(id);
    if (request?.sent) {
      this.#send({ type: "cancel", id });
    } else if (request) {
      this.#requests.delete(id);
      request.handlers.finished({ reason: "cancelled", usage: null });
    }
  }

  #opened() {
    this.#wait = FIRST_WAIT_MS;
    if (this.#key) this.#send({ type: "auth", api_key: this.#key });
    this.#onState("ready");
    this.#sendPending();
  }

  #received(frame) {
    if (frame.type === "error") {
      if (["invalid_api_key", "missing_api_key"].includes(frame.error?.code)) this.#refused();
      return;
    }
    const request = this.#requests.get(frame.id);
    if (!request) return;
    if (frame.type === "started" || frame.type === "token") {
      request.handlers[frame.type](frame);
    } else if (frame.type === "finished") {
      this.#requests.delete(frame.id);
      request.handlers.finished(frame);
    } else if (frame.type === "failed") {
      this.#requests.delete(frame.id);
      request.handlers.failed(frame.error);
    }
  }

  #refused() {
    const socket = this.#socket;
    this.#socket = null; // so that its close does not trigger a retry
    socket?.close();
    this.#failSent({ message: "The server did not accept the API key.", code: "invalid_api_key" });
    this.#onState("refused");
  }

  #closed() {
    this.#socket = null;
    this.#failSent({ message: "The connection to the server was lost.", code: "connection_lost" });
    const wait = this.#wait * (0.75 + Math.random() / 2); // random, so that tabs do not all reconnect at once
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
    this.#onState("waiting", Math.max(1, Math.round(wait / 1000)));
    this.#timer = setTimeout(() => this.connect(this.#key), wait);
  }

  #retryNow() {
    if (this.#socket === null && this.#timer) this.connect(this.#key);
  }

  #failSent(error) {
    for (const [id, request] of this.#requests) {
      if (request.sent) {
        this.#requests.delete(id);
        request.handlers.failed(error);
      }
    }
  }

  #sendPending() {
    if (this.#socket?.readyState !== WebSocket.OPEN) return;
    for (const request of this.#requests.values()) {
      if (!request.sent) {
        request.sent = true;
        this.#send(request.frame);
      }
    }
  }

  #send(frame) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }
}
