// Addresses of this server. All are relative to the page, which may lie under a path of a proxy.

export function socketAddress(path) {
  const url = new URL(path, document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url;
}
