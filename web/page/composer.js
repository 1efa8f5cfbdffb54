// The message box: what is typed and attached, its draft, and the buttons to send and to stop.

import { setUpAttaching } from "./attach.js";
import { filesIn, withFiles } from "./attached.js";
import { $ } from "./dom.js";
import { forgetOldDrafts, loadDraft, saveDraft } from "./store.js";

// mayAsk(), onSend(text), onStop(), onInput(), and what attach.js calls tokensOf. `text` is a question with its files
// (attached.js). Returns { show(chat id), busy(boolean), text(), focus() }.
export function setUpComposer({ mayAsk, onSend, onStop, onInput, tokensOf }) {
  const prompt = $("prompt");
  let chat = "";
  let stoppable = false;
  const attached = setUpAttaching({ onChange: changed, tokensOf });
  const text = () => withFiles(attached.files(), prompt.value.trim());
  const fit = () => {
    $("send").hidden = stoppable;
    $("stop").hidden = !stoppable;
    $("send").disabled = !text();
    prompt.style.height = "auto";
    prompt.style.height = `${prompt.scrollHeight}px`;
  };
  const focus = () => {
    if (matchMedia("(hover: hover)").matches) prompt.focus(); // on a phone the keyboard would cover half of the page
  };
  function changed() {
    saveDraft(chat, withFiles(attached.files(), prompt.value));
    fit();
    onInput();
  }
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const asked = text();
    if (!asked || stoppable || !mayAsk()) return;
    prompt.value = "";
    attached.show([]);
    changed();
    onSend(asked);
  });
  prompt.addEventListener("input", changed);
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("composer").requestSubmit();
    }
  });
  $("stop").addEventListener("click", () => {
    onStop();
    focus();
  });
  // Elsewhere Escape closes what is open: a dialog, the settings, the side bar on a narrow screen.
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing || event.defaultPrevented || event.target.closest("dialog, #settings, #sidebar")) return;
    if (stoppable) onStop();
  });
  forgetOldDrafts();
  return {
    show(id) {
      if (id === chat) return;
      const { files, typed } = filesIn(loadDraft(id));
      prompt.value = (chat === "" && prompt.value) || typed; // typed while the page began
      attached.show(files);
      chat = id;
      fit();
    },
    busy(value) {
      if (value === stoppable) return;
      stoppable = value;
      fit();
    },
    text,
    focus,
  };
}
