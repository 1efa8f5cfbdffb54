// The server's HTTP routes that the page uses. Addresses are relative to the page.

import { loadKey } from "./store.js";

// The JSON that a route answers; with a body it is a POST. Throws ServerError.
export async function ask(path, body, signal) {
  const key = loadKey();
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  const response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  if (!response.ok) throw new ServerError(response.status);
  return response.json();
}

export class ServerError extends Error {
  constructor(status) {
    super(`the server answered ${status}`);
    this.status = status;
  }
}

export const models = async () => (await ask("v1/models")).data;
