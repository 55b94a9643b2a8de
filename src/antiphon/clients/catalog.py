"""All clients, by the names under which `antiphon connect` and the page know them. `templates/` has their files."""

from typing import Final

from antiphon.clients.base import KEY_VARIABLE, ClientFile, ClientSetup
from antiphon.errors import NotFound
from antiphon.protocol.types.operations.models import ModelObject

_LLM_FOLDER = "io.datasette.llm"  # in the folder for applications of each system, as of click.get_app_dir
_CONTAINER_HINT = "In a container, 127.0.0.1 is not this machine: use an address that it can reach."


def _program(title: str, page: str, install: str, name: str, *user_agents: str) -> ClientSetup:
    """Return a library as a client: its file is a program that asks one question, the first of its page."""
    command = f"{'python' if name.endswith('.py') else 'node'} {name}"
    file = ClientFile(f"programs/{page}.txt", ".", name)
    return ClientSetup(title, f"clients/{page}.md", user_agents, (file,), f"Run it: {install}; {command}")


CLIENTS: Final = {
    "codex": ClientSetup(
        "Codex", "clients/codex.md", ("codex",),
        (
            ClientFile(
                "codex.toml", "~/.codex", "config.toml",
                (("model",), ("model_provider",), ("model_catalog_json",), ("model_providers", "antiphon")),
                variable="CODEX_HOME",
            ),
            ClientFile("codex-models.json", "~/.codex", "antiphon-models.json", (("models",),), variable="CODEX_HOME"),
        ),
        question=("codex", "exec", "--skip-git-repo-check"), reads_key=True,
    ),
    "claude": ClientSetup(
        "Claude Code", "clients/claude-code.md", ("claude-cli",),
        (ClientFile("claude.json", "~/.claude", "settings.json", (("env", "*"),), variable="CLAUDE_CONFIG_DIR"),),
        question=("claude", "-p"),
    ),
    "opencode": ClientSetup(
        "opencode", "clients/opencode.md", ("opencode", "ai-sdk"),
        (
            ClientFile(
                "opencode.json", "~/.config/opencode", "opencode.json", (("model",), ("provider", "antiphon")),
                other_name="opencode.jsonc",
            ),
        ),
        question=("opencode", "run"), reads_key=True,
    ),
    "llm": ClientSetup(
        "llm", "clients/llm.md", ("OpenAI/Python",),
        (
            ClientFile(
                "llm.yaml", f"~/.config/{_LLM_FOLDER}", "extra-openai-models.yaml",
                variable="LLM_USER_PATH", mac_folder=f"~/Library/Application Support/{_LLM_FOLDER}",
                windows_folder=_LLM_FOLDER,
            ),
            ClientFile(
                "llm-keys.json", f"~/.config/{_LLM_FOLDER}", "keys.json", (("antiphon",),),
                variable="LLM_USER_PATH", mac_folder=f"~/Library/Application Support/{_LLM_FOLDER}",
                windows_folder=_LLM_FOLDER, only_with_key=True,
            ),
        ),
        "Select a model with -m antiphon/NAME.", question=("llm", "-m", "antiphon/{model}"),
    ),
    "aider": ClientSetup(
        "aider, and programs that read OPENAI_… variables", "chat.md", ("litellm", "OpenAI/", "python"),
        (
            ClientFile("aider.env", ".", ".env"),
            ClientFile("aider-models.json", ".", ".aider.model.metadata.json", (("*",),)),
        ),
        "aider reads .env in the folder of the project. Export its variables for other programs.",
    ),
    "open-webui": ClientSetup(
        "Open WebUI", "chat.md", ("aiohttp", "open-webui"), (ClientFile("open-webui.env", ".", "open-webui.env"),),
        f"Start it with these variables: docker run --env-file open-webui.env … {_CONTAINER_HINT}",
    ),
    "librechat": ClientSetup(
        "LibreChat", "chat.md", ("OpenAI/JS", "node", "axios"),
        (ClientFile("librechat.yaml", ".", "librechat.yaml", (("endpoints", "custom"),)),),
        f"Restart it. {_CONTAINER_HINT}", reads_key=True,
    ),
    "cline": ClientSetup(
        "Cline", "chat.md", ("cline", "ai-sdk", "OpenAI/JS"),
        (
            ClientFile(
                "cline.json", "~/.cline/data/settings", "providers.json",
                (("version",), ("lastUsedProvider",), ("providers", "openai-compatible")),
            ),
        ),
        question=("cline",),
    ),
    "zed": ClientSetup(
        "Zed", "clients/index.md", ("Zed",),
        (
            ClientFile(
                "zed.json", "~/.config/zed", "settings.json",
                (("agent", "default_model"), ("language_models", "openai_compatible", "Antiphon")),
                windows_folder="Zed",
            ),
        ),
        f"Set {KEY_VARIABLE} to any text if the server needs no key.", reads_key=True,
    ),
    "vscode": ClientSetup(
        "VS Code", "clients/index.md", ("GitHubCopilotChat", "vscode"),
        (
            ClientFile(
                "vscode.json", "~/.config/Code/User", "chatLanguageModels.json", (("Antiphon",),),
                mac_folder="~/Library/Application Support/Code/User", windows_folder="Code/User",
            ),
        ),
        "Choose the model in the model picker of the chat view.",
    ),
    "openai-python": _program(
        "openai (Python)", "openai-python", "pip install openai", "ask_openai.py", "OpenAI/Python",
    ),
    "openai-node": _program(
        "openai (Node)", "openai-node", "npm install openai", "ask_openai.mjs", "OpenAI/JS",
    ),
    "agents-sdk": _program(
        "OpenAI Agents SDK (Python)", "agents-sdk", "pip install openai-agents", "ask_agents.py", "Agents/Python",
    ),
    "agents-js": _program(
        "OpenAI Agents SDK (JavaScript)", "agents-js", "npm install @openai/agents zod", "ask_agents.mjs",
        "Agents/JavaScript",
    ),
    "ai-sdk": _program(
        "Vercel AI SDK", "ai-sdk", "npm install ai @ai-sdk/openai zod", "ask_ai_sdk.mjs", "ai-sdk",
    ),
    "langchain": _program(
        "LangChain", "langchain", "pip install langchain-openai", "ask_langchain.py", "OpenAI/Python",
    ),
    "pydantic-ai": _program(
        "Pydantic AI", "pydantic-ai", "pip install 'pydantic-ai-slim[openai]'", "ask_pydantic_ai.py", "pydantic-ai",
    ),
    "litellm": _program(
        "LiteLLM", "litellm", "pip install 'litellm[mcp]'", "ask_litellm.py", "litellm", "OpenAI/Python",
    ),
}  # fmt: skip


def find_client(name: str) -> ClientSetup:
    if name not in CLIENTS:
        raise NotFound(f"There is no client '{name[:80]}'. Clients: {', '.join(CLIENTS)}.", param="client")
    return CLIENTS[name]


def list_text_models(models: list[ModelObject], first: str | None) -> list[ModelObject]:
    """Return the models that generate text from text; the one with the name `first` comes first."""
    found = [model for model in models if "text" in model.input_modalities and "text" in model.output_modalities]
    return sorted(found, key=lambda model: model.id != first)
