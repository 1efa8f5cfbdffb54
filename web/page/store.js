// What this browser remembers: conversations and settings in localStorage; a tab's own state in sessionStorage.
// One entry per conversation, so that two tabs do not overwrite each other's.

const CHAT = "triolet.chat.";
const SETTINGS = "triolet.settings";
const THEME = "triolet.theme";
const KEY = "triolet.key";
const CURRENT = "triolet.current";

export function loadChats() {
  const chats = [];
  for (const name of names()) {
    if (name.startsWith(CHAT)) {
      const chat = read(localStorage, name);
      if (chat && Array.isArray(chat.messages)) chats.push(chat);
    }
  }
  return chats.sort((a, b) => b.updated - a.updated);
}

// Returns false if the browser refuses to store it (storage is full or blocked).
export function saveChat(chat) {
  return write(localStorage, CHAT + chat.id, chat);
}

export function deleteChat(id) {
  try {
    localStorage.removeItem(CHAT + id);
  } catch {
    // nothing was stored
  }
}

export function newChat() {
  return { id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: "", updated: Date.now(), messages: [] };
}

export const loadSettings = () => read(localStorage, SETTINGS) ?? {};
export const saveSettings = (settings) => write(localStorage, SETTINGS, settings);

export function saveTheme(theme) {
  try {
    localStorage.setItem(THEME, theme);
  } catch {
    // the value lasts until the page is closed
  }
}

export const loadKey = () => read(sessionStorage, KEY);
export const saveKey = (key) => write(sessionStorage, KEY, key);

// The conversation that this tab shows, so that a reload shows it again.
export const loadCurrent = () => read(sessionStorage, CURRENT);
export const saveCurrent = (id) => write(sessionStorage, CURRENT, id);

export function onChatsChanged(callback) {
  addEventListener("storage", (event) => {
    if (event.key === null || event.key.startsWith(CHAT)) callback();
  });
}

function names() {
  try {
    return Object.keys(localStorage);
  } catch {
    return [];
  }
}

function read(storage, name) {
  try {
    return JSON.parse(storage.getItem(name));
  } catch {
    return null;
  }
}

function write(storage, name, value) {
  try {
    storage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
