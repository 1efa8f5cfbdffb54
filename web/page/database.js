// Conversations and messages in IndexedDB. Each message is a record of its own, and a change reads and writes within
// one transaction, so tabs cannot overwrite what they do not know of.
//
// What the browser cannot store (no IndexedDB, no room) is kept in memory over what is stored; `onTrouble` hears why.

export const CHATS = "chats"; // { id, title, created, updated, leaf, settings }
export const MESSAGES = "messages"; // { id, chat, parent, role, content, created, … }

const MISSING = "This browser does not let the page store anything: conversations last until this tab is closed.";
const FULL = "This browser has no room left: what you write now lasts until this tab is closed. Export or delete conversations.";

export class Database {
  #db = null;
  #unsaved = { [CHATS]: new Map(), [MESSAGES]: new Map() }; // id -> record that could not be stored
  #onTrouble;

  static async open(onTrouble) {
    const database = new Database();
    database.#onTrouble = onTrouble;
    try {
      database.#db = await opened();
    } catch {
      onTrouble(MISSING);
    }
    return database;
  }

  // Whether other tabs can read what this one stores.
  get shared() {
    return this.#db !== null;
  }

  async get(store, id) {
    return this.#unsaved[store].get(id) ?? (await this.#read((tx) => tx.objectStore(store).get(id)));
  }

  chats() {
    return this.#list(CHATS, (tx) => tx.objectStore(CHATS).getAll());
  }

  // Those of one conversation, or all.
  messages(chat) {
    const ofChat = chat === undefined ? () => true : (message) => message.chat === chat;
    return this.#list(MESSAGES, (tx) => (chat === undefined ? tx.objectStore(MESSAGES).getAll() : tx.objectStore(MESSAGES).index("chat").getAll(chat)), ofChat);
  }

  // Answers that some tab writes, or wrote when it was closed.
  running() {
    return this.#list(MESSAGES, (tx) => tx.objectStore(MESSAGES).index("state").getAll("streaming"), ({ state }) => state === "streaming");
  }

  // entries: [store, record]…, all or none of them. False: they are in memory only.
  async put(...entries) {
    try {
      await this.#write((tx) => {
        for (const [store, record] of entries) tx.objectStore(store).put(record);
      });
      for (const [store, record] of entries) this.#unsaved[store].delete(record.id);
      return true;
    } catch (error) {
      for (const [store, record] of entries) this.#unsaved[store].set(record.id, record);
      this.#complain(error);
      return false;
    }
  }

  // Gives `edit` the record as it is now, also where another tab changed it, and stores what it returns, if anything.
  async update(store, id, edit) {
    let record;
    try {
      await this.#write((tx) => {
        const records = tx.objectStore(store);
        records.get(id).onsuccess = (event) => {
          record = edit(this.#unsaved[store].get(id) ?? event.target.result);
          if (record) records.put(record);
        };
      });
      this.#unsaved[store].delete(id);
    } catch (error) {
      record ??= edit(this.#unsaved[store].get(id));
      if (record) this.#unsaved[store].set(id, record);
      this.#complain(error);
    }
    return record;
  }

  // A conversation with its messages. Then there may be room for what could not be stored.
  async remove(chat, messageIds) {
    this.#unsaved[CHATS].delete(chat);
    for (const id of messageIds) this.#unsaved[MESSAGES].delete(id);
    try {
      await this.#write((tx) => {
        tx.objectStore(CHATS).delete(chat);
        for (const id of messageIds) tx.objectStore(MESSAGES).delete(id);
      });
    } catch (error) {
      this.#complain(error);
      return;
    }
    const waiting = [CHATS, MESSAGES].flatMap((store) => [...this.#unsaved[store].values()].map((record) => [store, record]));
    if (waiting.length > 0 && (await this.put(...waiting))) this.#onTrouble("");
  }

  async #list(store, request, wanted = () => true) {
    const records = new Map(((await this.#read(request)) ?? []).map((record) => [record.id, record]));
    for (const [id, record] of this.#unsaved[store]) if (wanted(record)) records.set(id, record);
    return [...records.values()];
  }

  async #read(request) {
    if (this.#db === null) return undefined;
    try {
      const tx = this.#db.transaction([CHATS, MESSAGES]);
      return await settled(request(tx));
    } catch (error) {
      this.#complain(error); // the site's data were deleted while the page was open
      return undefined;
    }
  }

  async #write(work) {
    if (this.#db === null) throw new DOMException(MISSING, "InvalidStateError");
    const tx = this.#db.transaction([CHATS, MESSAGES], "readwrite");
    work(tx);
    await new Promise((resolve, reject) => {
      tx.oncomplete = resolve;
      tx.onabort = () => reject(tx.error);
    });
  }

  #complain(error) {
    if (this.#db !== null) this.#onTrouble(error?.name === "QuotaExceededError" ? FULL : `This browser does not store the conversations any more: ${error?.message}`);
  }
}

function opened() {
  const request = indexedDB.open("triolet", 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore(CHATS, { keyPath: "id" });
    const messages = request.result.createObjectStore(MESSAGES, { keyPath: "id" });
    messages.createIndex("chat", "chat");
    messages.createIndex("state", "state");
  };
  return settled(request);
}

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
