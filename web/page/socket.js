// The WebSocket to /v1/stream: many requests over one socket, and a new socket when it breaks.
//
// States given to `onState`: "connecting", "ready", "waiting" (with the seconds until the next attempt), "refused" (the
// server wants a key). `onEngine` gets the server's `status` frames: whether its engine is ready, and why not.
//
// A request made while there is no socket, or while the server loads its model, is sent as soon as that is over. One that
// was accepted goes on over the next socket, if the server keeps answers; otherwise it fails with `connection_lost`.

import { socketAddress } from "./address.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;
const POLICY = "grace:120"; // so many seconds an answer goes on for a page that is reloaded or cut off
const MISDIRECTED_MS = 100; // before another socket, which may reach the right one of several web processes
const MISDIRECTED_TIMES = 30;
const TOO_BIG = 1009; // code with which the server closes at a frame above its limit
const TOO_LONG = { message: "The conversation is longer than the server takes in one request.", code: "context_length_exceeded" };
const LOST = { message: "The connection to the server was lost.", code: "connection_lost" };

export class EngineSocket {
  #socket = null;
  #key = null;
  #active = false; // a connection is wanted
  #onState;
  #onEngine;
  #loading = false; // the server takes no requests yet
  #resumable = true; // the server keeps answers for so long
  #requests = new Map(); // id -> { request, handlers, sent, token, after, begun, cancelled, misdirected }
  #count = 0;
  #wait = FIRST_WAIT_MS;
  #timer = 0;

  constructor(onState, onEngine) {
    this.#onState = onState;
    this.#onEngine = onEngine;
    addEventListener("online", () => this.#retryNow());
    document.addEventListener("visibilitychange", () => document.hidden || this.#retryNow());
  }

  connect(key) {
    this.#key = key;
    this.#active = true;
    clearTimeout(this.#timer);
    this.#socket?.close();
    this.#onState("connecting");
    const socket = new WebSocket(socketAddress("v1/stream"));
    this.#socket = socket;
    socket.onopen = () => this.#opened();
    socket.onmessage = (event) => socket === this.#socket && this.#received(JSON.parse(event.data));
    socket.onclose = ({ code }) => socket === this.#socket && this.#closed(this.#wait, code === TOO_BIG ? TOO_LONG : LOST);
  }

  // handlers: accepted(token), started(), token(frame), finished(frame), failed(error), explained(explanation)
  create(request, handlers) {
    return this.#add({ request, handlers, token: null, after: 0 });
  }

  // Go on with an answer of which `after` frames are known.
  resume(token, after, handlers) {
    return this.#add({ request: null, handlers, token, after });
  }

  cancel(id) {
    const request = this.#requests.get(id);
    if (request?.sent) {
      this.#send({ type: "cancel", id });
    } else if (request) {
      if (request.token) request.cancelled = true; // the server hears of it on the next socket
      else this.#requests.delete(id);
      request.handlers.finished({ reason: "cancelled", usage: null });
    }
  }

  explain(id) {
    if (this.#requests.get(id)?.sent) this.#send({ type: "explain", id });
  }

  #add(request) {
    this.#count += 1;
    const id = `r${this.#count}`;
    this.#requests.set(id, { sent: false, cancelled: false, misdirected: 0, ...request });
    this.#sendPending();
    return id;
  }

  #opened() {
    this.#loading = false;
    this.#wait = FIRST_WAIT_MS;
    if (this.#key) this.#send({ type: "auth", api_key: this.#key });
    this.#onState("ready");
    this.#sendPending();
  }

  #received(frame) {
    if (frame.type === "error") {
      if (["invalid_api_key", "missing_api_key"].includes(frame.error?.code)) this.#refused();
    } else if (frame.type === "status") {
      this.#loading = frame.status === "loading";
      this.#onEngine(frame);
      this.#sendPending();
    } else {
      const request = this.#requests.get(frame.id);
      if (request) this.#answered(request, frame);
    }
  }

  #answered(request, frame) {
    const { handlers, cancelled } = request;
    if (frame.type === "failed" && this.#again(request, frame.error)) return;
    if (frame.seq !== undefined) request.after = frame.seq + 1;
    if (frame.type === "finished" || frame.type === "failed") this.#requests.delete(frame.id);
    if (cancelled) return;
    if (frame.type === "accepted") {
      request.token = frame.resume;
      handlers.accepted(frame.resume);
    } else if (frame.type === "started") {
      handlers.started();
    } else if (frame.type === "token") {
      request.begun = true;
      handlers.token(frame);
    } else if (frame.type === "finished") {
      handlers.finished(frame);
    } else if (frame.type === "failed") {
      handlers.failed(frame.error);
    } else if (frame.type === "explanation") {
      handlers.explained(frame.explanation);
    }
  }

  // Whether a failed request will be sent again.
  #again(request, { code, param }) {
    if (code === "model_loading") {
      this.#loading = true; // until a `status` says otherwise
    } else if (param === "disconnect_policy" && this.#resumable) {
      this.#resumable = false;
    } else if (code === "not_found" && request.token && request.request && !request.begun && !request.cancelled) {
      Object.assign(request, { token: null, after: 0 }); // the server was started anew, and nothing of it was seen
    } else if (code === "misdirected" && request.misdirected < MISDIRECTED_TIMES) {
      request.misdirected += 1;
      this.#socket.onclose = null;
      this.#socket.close();
      this.#closed(MISDIRECTED_MS, LOST);
    } else {
      return false;
    }
    request.sent = false;
    this.#sendPending();
    return true;
  }

  #refused() {
    const socket = this.#socket;
    this.#active = false;
    this.#socket = null; // so that its close does not trigger a retry
    socket?.close();
    this.#failSent({ message: "The server did not accept the API key.", code: "invalid_api_key" });
    this.#onState("refused");
  }

  // Requests that were not accepted fail with `error`.
  #closed(usualWait, error) {
    this.#socket = null;
    this.#failSent(error);
    const wait = usualWait * (0.75 + Math.random() / 2); // random, so that tabs do not all reconnect at once
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
    this.#onState("waiting", Math.max(1, Math.round(wait / 1000)));
    this.#timer = setTimeout(() => this.connect(this.#key), wait);
  }

  #retryNow() {
    if (this.#active && this.#socket?.readyState !== WebSocket.OPEN) this.connect(this.#key); // one that opens may hang
  }

  #failSent(error) {
    for (const [id, request] of this.#requests) {
      if (!request.sent) continue;
      request.sent = false;
      if (request.token) continue; // it goes on over the next socket
      this.#requests.delete(id);
      request.handlers.failed(error);
    }
  }

  #sendPending() {
    if (this.#socket?.readyState !== WebSocket.OPEN || this.#loading) return;
    for (const [id, pending] of this.#requests) {
      if (pending.sent) continue;
      pending.sent = true;
      const { token, after, request, cancelled } = pending;
      if (token) this.#send({ type: "resume", id, resume: token, after });
      else this.#send({ type: "create", id, request: { ...request, ...(this.#resumable && { disconnect_policy: POLICY }) } });
      if (cancelled) this.#send({ type: "cancel", id });
    }
  }

  #send(frame) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }
}
