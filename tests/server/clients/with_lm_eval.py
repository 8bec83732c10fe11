"""lm-eval against a server: python with_lm_eval.py URL generate|score FOLDER. Writes the results as JSON.

The tasks are made here and need no network: one that generates, one that scores choices by log-probabilities.
"""

import json
import sys
from pathlib import Path

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

URL, KIND, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])
DOCS = [
    {"question": "say:paris", "answer": "paris", "choices": ["a", "bbbb"], "label": 0},
    {"question": "say:rome", "answer": "rome", "choices": ["cccc", "d"], "label": 1},
    {"question": "say:oslo", "answer": "lima", "choices": ["e", "ffff"], "label": 1},
]
DATA = FOLDER / "docs.jsonl"
DATA.write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
SHARED = f"""
dataset_path: json
dataset_kwargs: {{data_files: {{test: {DATA}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
num_fewshot: 0
"""
(FOLDER / "generate.yaml").write_text(
    f"""task: toy_generate
{SHARED}
output_type: generate_until
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 20}}
metric_list: [{{metric: exact_match}}]
"""
)
(FOLDER / "score.yaml").write_text(
    f"""task: toy_score
{SHARED}
output_type: multiple_choice
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{label}}}}"
metric_list: [{{metric: acc}}]
"""
)
ARGUMENTS = {"model": "scripted", "base_url": f"{URL}/v1/completions", "max_retries": 1, "num_concurrent": 1}
ARGUMENTS["tokenizer_backend"] = "remote" if KIND == "score" else "none"
results = simple_evaluate(
    model="local-completions",
    model_args={**ARGUMENTS, "eos_string": "<|257|>"} if KIND == "generate" else ARGUMENTS,
    tasks=[f"toy_{KIND}"],
    task_manager=TaskManager(include_path=str(FOLDER), include_defaults=False),
    batch_size=2,
    bootstrap_iters=0,
)
print(
    json.dumps({name: value for name, value in results["results"][f"toy_{KIND}"].items() if isinstance(value, float)})
)
