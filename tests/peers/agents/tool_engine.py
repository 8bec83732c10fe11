"""An engine without a model that calls one tool: it has an agent run one command, then repeats what that printed.

It reads the prompt as the model's own template wrote it and answers in the syntax which that template teaches (Qwen's,
which is Hermes'), so that everything between the agent and the engine is the real thing.
"""

from __future__ import annotations

import json
import re

from scripted_engine import ScriptedEngine

from caudal.checkpoint import open_checkpoint
from caudal.tokenizer.from_gguf import load_gguf_tokenizer

COMMAND = "echo caudal-$((6*7))"
SHELLS = ("Bash", "bash", "exec_command", "shell_command", "shell", "run_shell_command")
TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
OUTPUT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


def shell_call(tools):
    """Return a call of the shell among an agent's tools, filled in as its schema wants it; None if there is none."""
    functions = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    name = next((name for name in SHELLS if name in functions), None)
    if name is None:
        return None
    properties = functions[name].get("properties", {})
    key = next(key for key in ("command", "cmd") if key in properties)
    value = ["bash", "-lc", COMMAND] if properties[key].get("type") == "array" else COMMAND
    others = dict.fromkeys(functions[name].get("required", ()), "prints a word")
    return {"name": name, "arguments": {**others, key: value}}


def answer_to(prompt):
    """Return what the model would say to a prompt."""
    outputs = OUTPUT.findall(prompt)
    if outputs:
        return f"The tool said: {outputs[-1].strip().splitlines()[-1]}"
    found = TOOLS.search(prompt)
    call = found and shell_call([json.loads(line) for line in found[1].splitlines()])
    return f"I run it.\n<tool_call>\n{json.dumps(call)}\n</tool_call>" if call else "ok"


class ToolEngine(ScriptedEngine):
    def __init__(self, config, tokenizer):
        super().__init__(config)
        self.tokenizer = tokenizer

    def add_request(self, request):
        super().add_request(request)
        script = next(script for script in (*self.running, *self.waiting) if script.request is request)
        answer = answer_to(self.tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False))
        token_ids = [*self.tokenizer.encode(answer, add_special_tokens=False, parse_special=True)]
        token_ids.append(request.eos_token_ids[0])
        script.text, script.slow = "", False
        script.next_token = lambda: token_ids[script.num_tokens]


def load(config):
    with open_checkpoint(config.model_path) as checkpoint:
        return ToolEngine(config, load_gguf_tokenizer(checkpoint.metadata, path=config.model_path))
