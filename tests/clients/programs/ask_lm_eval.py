"""lm-eval with a task of its own: log probabilities of a prompt through the remote tokenizer, and chat answers."""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}

import lm_eval
from lm_eval.tasks import TaskManager

CHOICE = """
task: which_is_likely
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: 0
doc_to_choice: ["upon a time", "zebra the of"]
metric_list: [{metric: acc}]
"""
CHAT = """
task: what_is_the_sum
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{sum}}"
doc_to_target: "3 + 4 = 7."
generation_kwargs: {until: ["END"], max_gen_toks: 32, temperature: 0}
metric_list: [{metric: exact_match}]
"""


def main(url: str, folder: str) -> dict[str, float]:
    data = Path(folder, "data.jsonl")
    data.write_text(json.dumps({"question": "Once", "sum": "What is 3 plus 4?"}) + "\n")
    for name, text in (("choice", CHOICE), ("chat", CHAT)):
        Path(folder, f"{name}.yaml").write_text(text.replace("FILE", str(data)))
    tasks = TaskManager(include_path=folder, include_defaults=False)
    common = {"tasks": None, "task_manager": tasks, "log_samples": False, "bootstrap_iters": 0}
    remote = f"model=triolet-demo,base_url={url}/v1/completions,tokenizer_backend=remote,max_length=2048"
    choice = lm_eval.simple_evaluate("local-completions", remote, **common | {"tasks": ["which_is_likely"]})
    chats = f"model=triolet-demo,base_url={url}/v1/chat/completions"
    chat = lm_eval.simple_evaluate(
        "local-chat-completions", chats, apply_chat_template=True, **common | {"tasks": ["what_is_the_sum"]}
    )
    return {
        "choice": choice["results"]["which_is_likely"]["acc,none"],
        "chat": chat["results"]["what_is_the_sum"]["exact_match,none"],
    }


with tempfile.TemporaryDirectory() as folder:
    print(json.dumps(main(sys.argv[1], folder)))
