// The dialog to export and import conversations.

import { $ } from "./dom.js";
import { toast } from "./panels.js";
import { download, fromJson, toJson, toMarkdown } from "./transfer.js";

// current() gives { chat, path }; messagesOf(id) and add(chat, messages, fields) are those of Conversations.
export function setUpFiles({ current, conversations }) {
  const dialog = $("files");
  const json = async (name, chats) => {
    const exported = await Promise.all(chats.map(async (chat) => ({ chat, messages: await conversations.messagesOf(chat.id) })));
    download(`${name}.json`, "application/json", toJson(exported));
    dialog.close();
  };
  $("open-files").addEventListener("click", () => {
    const { chat, path } = current();
    for (const id of ["export-markdown", "export-json"]) $(id).disabled = path.length === 0;
    $("export-all").disabled = conversations.list().length === 0;
    $("export-title").textContent = path.length > 0 ? `“${chat.title}”` : "This conversation is empty.";
    dialog.showModal();
  });
  $("export-markdown").addEventListener("click", () => {
    const { chat, path } = current();
    download(`${fileName(chat.title)}.md`, "text/markdown", toMarkdown(chat.title, path));
    dialog.close();
  });
  $("export-json").addEventListener("click", () => json(fileName(current().chat.title), [current().chat]));
  $("export-all").addEventListener("click", () => json("conversations", conversations.list()));
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", async () => {
    const [file] = $("import-file").files;
    $("import-file").value = ""; // so that the same file can be chosen again
    if (!file) return;
    dialog.close();
    try {
      const imported = fromJson(await file.text());
      for (const { chat, messages } of imported) await conversations.add(chat, messages, { updated: chat.updated, leaf: chat.leaf });
      toast(imported.length === 1 ? "1 conversation imported" : `${imported.length} conversations imported`);
    } catch (error) {
      toast(`“${file.name}” was not imported. ${error.message}`);
    }
  });
}

const fileName = (title) => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";
