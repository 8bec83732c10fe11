"""What each agent needs to work with this server: environment variables, a configuration file, a command.

One row per agent. Texts are templates over these names:

    {root}      http://127.0.0.1:8000          {model}    the model's id
    {base}      the same with /v1              {context}  its context window in tokens; 32768 if nobody knows
    {key}       the server's key, or "caudal" where an agent insists on one
    {output}    room for an answer: a quarter of the context, at most 32000
    {folder}    where the configuration file lies

The names of variables, files and flags are the agents'; the tests start programs that only pretend to be them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

CODEX = """\
model = {model!j}
model_provider = "caudal"
model_context_window = {context}
model_auto_compact_token_limit = {compact}

[model_providers.caudal]
name = "Caudal"
base_url = {base!j}
wire_api = "responses"
env_key = "CAUDAL_API_KEY"
stream_idle_timeout_ms = 600000
"""

OPENCODE = """\
{{
  "$schema": "https://opencode.ai/config.json",
  "model": "caudal/{model!t}",
  "small_model": "caudal/{model!t}",
  "provider": {{
    "caudal": {{
      "npm": "@ai-sdk/openai-compatible",
      "name": "Caudal",
      "options": {{"baseURL": {base!j}, "apiKey": {key!j}}},
      "models": {{
        {model!j}: {{"name": {model!j}, "limit": {{"context": {context}, "output": {output}}}}}
      }}
    }}
  }}
}}
"""

PI = """\
{{
  "providers": {{
    "caudal": {{
      "baseUrl": {base!j},
      "api": "openai-completions",
      "apiKey": {key!j},
      "models": [
        {{"id": {model!j}, "name": {model!j}, "contextWindow": {context}, "maxTokens": {output}, "input": ["text"],
          "reasoning": false, "cost": {{"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}}}}
      ]
    }}
  }}
}}
"""

CONTINUE = """\
name: Caudal
version: 0.0.1
schema: v1
models:
  - name: {model!j}
    provider: openai
    model: {model!j}
    apiBase: {base!j}
    apiKey: {key!j}
    roles: [chat, edit, apply]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: {context}
      maxTokens: {output}
"""

VSCODE = """\
{{
  "name": "Caudal",
  "vendor": "customendpoint",
  "apiKey": {key!j},
  "apiType": "chat-completions",
  "models": [
    {{
      "id": {model!j},
      "name": {model!j},
      "url": "{base!t}/chat/completions",
      "toolCalling": true,
      "vision": false,
      "maxInputTokens": {input},
      "maxOutputTokens": {output}
    }}
  ]
}}
"""

ZED = """\
{{
  "language_models": {{
    "openai_compatible": {{
      "Caudal": {{
        "api_url": {base!j},
        "available_models": [
          {{
            "name": {model!j},
            "max_tokens": {context},
            "max_output_tokens": {output},
            "capabilities": {{"tools": true, "images": false, "parallel_tool_calls": true, "prompt_cache_key": false}}
          }}
        ]
      }}
    }}
  }},
  "agent": {{"default_model": {{"provider": "Caudal", "model": {model!j}}}}}
}}
"""

AIDER = """\
{{
  "openai/{model!t}": {{
    "max_input_tokens": {context},
    "max_output_tokens": {output},
    "input_cost_per_token": 0,
    "output_cost_per_token": 0,
    "litellm_provider": "openai",
    "mode": "chat"
  }}
}}
"""


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """A configuration file.

    Attributes:
        name: of the file, in a folder of its own when the agent is started here.
        usual: where a person keeps it.
        text: a template of what is in it.
    """

    name: str
    usual: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A row of the table.

    Attributes:
        title: its name for people.
        command: what starts it; empty if it is not started from a shell with its settings.
        environment: variables.
        file: its configuration file, if it needs one.
        file_environment: variables that lead it to a file in {folder}.
        file_arguments: arguments that do.
        notes: what a person must do by hand.
    """

    title: str
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    file: ConfigFile | None = None
    file_environment: dict[str, str] = field(default_factory=dict)
    file_arguments: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


AGENTS: dict[str, Agent] = {
    "claude": Agent(
        title="Claude Code",
        command=("claude",),
        environment={
            "ANTHROPIC_BASE_URL": "{root}",
            "ANTHROPIC_AUTH_TOKEN": "{key}",
            "ANTHROPIC_API_KEY": "",
            "ANTHROPIC_MODEL": "{model}",
            "ANTHROPIC_DEFAULT_OPUS_MODEL": "{model}",
            "ANTHROPIC_DEFAULT_SONNET_MODEL": "{model}",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}",
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "{context}",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "{output}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        notes=("Its first request has some 15,000 tokens: the context should be 32768 or more.",),
    ),
    "codex": Agent(
        title="Codex CLI",
        command=("codex",),
        environment={"CAUDAL_API_KEY": "{key}"},
        file=ConfigFile(name="config.toml", usual="~/.codex/config.toml", text=CODEX),
        file_environment={"CODEX_HOME": "{folder}"},
    ),
    "opencode": Agent(
        title="opencode",
        command=("opencode",),
        file=ConfigFile(name="opencode.json", usual="~/.config/opencode/opencode.json", text=OPENCODE),
        file_environment={"OPENCODE_CONFIG": "{folder}/opencode.json"},
    ),
    "qwen-code": Agent(
        title="Qwen Code",
        command=("qwen", "--auth-type", "openai"),
        environment={"OPENAI_BASE_URL": "{base}", "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": "{model}"},
    ),
    "pi": Agent(
        title="pi",
        command=("pi", "--provider", "caudal", "--model", "{model}"),
        file=ConfigFile(name="models.json", usual="~/.pi/agent/models.json", text=PI),
        file_environment={"PI_CODING_AGENT_DIR": "{folder}"},
    ),
    "cline": Agent(
        title="Cline",
        command=("cline", "-P", "openai-compatible"),
        notes=("Once, before the first start: cline auth openai-compatible -k {key} -m {model} -b {base}",),
    ),
    "continue": Agent(
        title="Continue",
        command=("cn",),
        file=ConfigFile(name="config.yaml", usual="~/.continue/config.yaml", text=CONTINUE),
        file_arguments=("--config", "{folder}/config.yaml"),
    ),
    "aider": Agent(
        title="aider",
        command=("aider", "--model", "openai/{model}"),
        environment={"OPENAI_API_BASE": "{base}", "OPENAI_API_KEY": "{key}"},
        file=ConfigFile(name="model-metadata.json", usual=".aider.model.metadata.json", text=AIDER),
        file_arguments=("--model-metadata-file", "{folder}/model-metadata.json"),
    ),
    "vscode": Agent(
        title="VS Code (Copilot Chat, own models)",
        file=ConfigFile(name="caudal.json", usual="the entry of the provider 'Custom Endpoint'", text=VSCODE),
        notes=("In VS Code: Chat: Manage Language Models > Add Models > Custom Endpoint, with these values.",),
    ),
    "zed": Agent(
        title="Zed",
        command=("zed",),
        environment={"CAUDAL_API_KEY": "{key}"},
        file=ConfigFile(name="settings.json", usual="~/.config/zed/settings.json", text=ZED),
        notes=("Zed reads one settings file: add these entries to yours.",),
    ),
    "open-webui": Agent(
        title="Open WebUI",
        command=("open-webui", "serve"),
        environment={
            "OPENAI_API_BASE_URL": "{base}",
            "OPENAI_API_KEY": "{key}",
            "ENABLE_OLLAMA_API": "false",
            "DEFAULT_MODELS": "{model}",
        },
    ),
}
