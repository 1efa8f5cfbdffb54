// Small things that this browser remembers: theme, key, drafts, the settings of new conversations. The conversations are
// in database.js.

const SETTINGS = "triolet.settings";
const THEME = "triolet.theme";
const KEY = "triolet.key";
const CURRENT = "triolet.current";
const DRAFT = "triolet.draft.";
const DRAFT_KEPT_MS = 30 * 86_400_000;

export const loadSettings = () => read(localStorage, SETTINGS) ?? {};
export const saveSettings = (settings) => write(localStorage, SETTINGS, settings);

export function saveTheme(theme) {
  try {
    localStorage.setItem(THEME, theme);
  } catch {
    // the value lasts until the page is closed
  }
}

// The key and the conversation that is shown belong to the tab: a reload keeps them.
export const loadKey = () => read(sessionStorage, KEY);
export const saveKey = (key) => write(sessionStorage, KEY, key);
export const loadCurrent = () => read(sessionStorage, CURRENT);
export const saveCurrent = (id) => write(sessionStorage, CURRENT, id);

// What is typed and not sent, by conversation. Written at once, since a reload waits for nothing.
export const loadDraft = (chat) => read(localStorage, DRAFT + chat)?.text ?? "";

export function saveDraft(chat, text) {
  if (text) write(localStorage, DRAFT + chat, { text, time: Date.now() });
  else remove(DRAFT + chat);
}

export function forgetOldDrafts() {
  for (const name of names()) {
    if (name.startsWith(DRAFT) && !(read(localStorage, name)?.time > Date.now() - DRAFT_KEPT_MS)) remove(name);
  }
}

export function names() {
  try {
    return Object.keys(localStorage);
  } catch {
    return [];
  }
}

export function read(storage, name) {
  try {
    return JSON.parse(storage.getItem(name));
  } catch {
    return null;
  }
}

export function remove(name) {
  try {
    localStorage.removeItem(name);
  } catch {
    // nothing was stored
  }
}

function write(storage, name, value) {
  try {
    storage.setItem(name, JSON.stringify(value));
  } catch {
    // the value lasts until the page is closed
  }
}
