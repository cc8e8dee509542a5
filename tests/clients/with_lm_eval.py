"""EleutherAI's lm-eval on chat completions and completions, with a task of four questions that is written for the run."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.clients import asked
from tests.clients.rows import Row, ended, main

FACTS = {"Who rules Belm?": "Belm is ruled by Kaspar.", "By whom is Belm ruled?": "Belm is ruled by Kaspar."}
TASK: dict[str, Any] = {
    "task": "towns",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 32, "temperature": 0},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}


class Chat(Row):
    """Model local-chat-completions."""

    package = "lm-eval"
    endpoint = "/v1/chat/completions"
    model = "local-chat-completions"
    flags: tuple[str, ...] = ("--apply_chat_template",)
    questions = FACTS
    task = TASK
    more = ""

    def results(self) -> Any:
        """The scores of the task."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            lines = [json.dumps({"question": question, "answer": answer}) for question, answer in self.questions.items()]
            (folder / "towns.jsonl").write_text("\n".join(lines))
            data = {"dataset_kwargs": {"data_files": {"test": str(folder / "towns.jsonl")}}}
            (folder / "towns.yaml").write_text(json.dumps({**self.task, **data}))  # JSON is YAML
            url = self.server.url + self.endpoint
            command = [sys.executable, "-m", "lm_eval", "run", "--model", self.model, "--tasks", "towns", "--include_path", name]
            command += ["--model_args", f"model={self.server.model},base_url={url},num_concurrent=2,max_retries=1{self.more}"]
            ended([*command, "--output_path", f"{name}/out", *self.flags])
            (report,) = folder.glob("out/**/results*.json")
            return json.loads(report.read_text())["results"]["towns"]

    def chat(self) -> None:
        asked.same(self.results()["exact_match,none"], 1.0)


class Completions(Chat):
    """Model local-completions with loglikelihoods, which need the prompt's logprobs."""

    endpoint = "/v1/completions"
    model = "local-completions"
    flags = ()
    questions = {"Belm is ruled by": " Kaspar"}  # noqa: RUF012 - never changed
    more = ",tokenizer_backend=huggingface"
    task: dict[str, Any] = {  # noqa: RUF012 - never changed
        **{key: value for key, value in TASK.items() if key not in ("generation_kwargs", "metric_list")},
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": [" Kaspar", " Belm", " sunny"],
        "doc_to_target": 0,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }

    def chat(self) -> None:
        asked.same(self.results()["acc,none"], 1.0)


if __name__ == "__main__":
    main([Chat, Completions])
