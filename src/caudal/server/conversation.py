"""A conversation in the form that every chat API is brought into, and its way to a prompt.

An API's handler makes a Conversation of its own request; from here on nobody knows which API it was.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from caudal.errors import InvalidParameter
from caudal.messages import AddRequest
from caudal.server.answer_reader import AnswerReader
from caudal.server.answers import Answer
from caudal.server.loaded_model import check_counted
from caudal.tools.formats import AnswerFormat, format_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from caudal.sampling_params import SamplingParams
    from caudal.server.answers import AnswerWatcher
    from caudal.server.call import Call
    from caudal.server.loaded_model import LoadedModel
    from caudal.tools.parts import AnswerParser

RESERVED_VARIABLES = frozenset({"self", "messages", "tools", "add_generation_prompt", "continue_final_message"})


@dataclass(frozen=True, kw_only=True)
class ToolChoice:
    """Whether the model may, must or must not call a tool.

    Attributes:
        mode: "auto", "none", or "required".
        name: with "required", the only tool that may be called.
    """

    mode: str = "auto"
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What is asked of a chat model.

    Attributes:
        messages: as OpenAI's chat API has them: role, content (a string), and where they apply name, tool_calls (with
            arguments as JSON text or a dict), tool_call_id, reasoning_content.
        tools: the tools' functions: name, and where given description, parameters (a JSON schema) and strict.
        tool_choice: which of them may be called.
        parallel_tool_calls: whether one answer may hold several calls.
        add_generation_prompt: end the prompt with what begins an answer.
        continue_final_message: go on with the last message instead.
        variables: further variables for the template, such as enable_thinking.
        separates_reasoning: tell reasoning from text; otherwise both are text.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    separates_reasoning: bool = True


@dataclass(frozen=True, kw_only=True)
class ChatPrompt:
    """A conversation as the model reads it, and how its answer is to be read.

    Attributes:
        token_ids: the prompt.
        format: how this model writes calls and reasoning.
        conversation: where it came from.
        opens_reasoning: the prompt ends inside the model's reasoning.
    """

    token_ids: list[int]
    format: AnswerFormat
    conversation: Conversation
    opens_reasoning: bool

    def parser(self) -> AnswerParser:
        """Return a parser for one answer."""
        chat = self.conversation
        return self.format.parser(
            tools=chat.tools if chat.tool_choice.mode != "none" else (),
            reasoning=chat.separates_reasoning,
            opens_reasoning=self.opens_reasoning,
        )


async def read_conversation(
    chat: Conversation, model: LoadedModel, *, num_chars: int, parameter: str = "messages", counts: bool = False
) -> ChatPrompt:
    """Return a conversation's prompt, by the model's template.

    Args:
        chat: the conversation.
        model: who is to read it.
        num_chars: how much work that is.
        parameter: the field that it comes from.
        counts: its tokens are only counted, and may be more than the context.

    Raises:
        RequestError: the template refuses it, or the messages have parts that are not supported.
        PromptTooLong: it is so long that it is not even tokenized.
    """
    tools, variables = template_input(chat)

    def work() -> list[int]:
        check = check_counted if counts else model.check_text
        check(_num_chars(chat.messages, tools), parameter)
        return model.tokenizer.encode_chat(chat.messages, tools, **variables)

    token_ids = await model.tokenize(work, num_chars)
    answer_format = format_of(model.tokenizer.chat_template_source)
    tail = model.tokenizer.decode(token_ids[-_TAIL_TOKENS:], skip_special_tokens=False)
    return ChatPrompt(
        token_ids=token_ids,
        format=answer_format,
        conversation=chat,
        opens_reasoning=answer_format.opens_reasoning(tail),
    )


def _num_chars(messages: Sequence[Mapping[str, Any]], tools: list[dict[str, Any]] | None) -> int:
    """Return how much text a template gets to show, apart from calls and reasoning, which some templates drop."""
    texts = [content for message in messages if isinstance(content := message.get("content"), str)]
    return sum(map(len, texts)) + (len(msgspec.json.encode(tools)) if tools else 0)


def template_input(chat: Conversation) -> tuple[list[dict[str, Any]] | None, dict[str, Any]]:
    """Return the tools as a template sees them, and the other arguments of encode_chat and render_chat.

    Raises:
        InvalidParameter: there are no messages, or a variable has the name of one that is not the user's.
    """
    if not chat.messages:
        message = "messages is empty; expected at least one message"
        raise InvalidParameter(message, parameter="messages")
    reserved = sorted(RESERVED_VARIABLES.intersection(chat.variables))
    if reserved:
        message = f"chat_template_kwargs has {reserved[0]!r}, which is not a template variable of yours; leave it out"
        raise InvalidParameter(message, parameter="chat_template_kwargs")
    variables = dict(chat.variables)
    if chat.continue_final_message:
        variables["continue_final_message"] = True
    variables["add_generation_prompt"] = chat.add_generation_prompt and not chat.continue_final_message
    tools = [{"type": "function", "function": dict(tool)} for tool in chat.tools]
    shown = tools if chat.tool_choice.mode != "none" else []
    return shown or None, variables


_TAIL_TOKENS = 16


def cache_salt(call: Call, given: str | None) -> str:
    """Return what separates a request's prefix cache from other tenants' and from that of other salts."""
    if not call.tenant:
        return given or ""
    return hashlib.sha256(f"{call.tenant}\0{given or ''}".encode()).hexdigest()[:32]


def new_answer(  # noqa: PLR0913 - what one request consists of
    request_id: str,
    prompt: list[int] | ChatPrompt,
    params: SamplingParams,
    *,
    call: Call,
    model: LoadedModel,
    priority: int | None = None,
    salt: str | None = None,
    include_stop: bool = False,
    grammar: str = "",
) -> Answer:
    """Return an answer that is not begun yet: what the engine gets, and how what it says is read.

    Args:
        request_id: unique in the engine.
        prompt: token ids, or a conversation's prompt, whose answer is then read into parts.
        params: with n of 1.
        call: whose request it is.
        model: who answers.
        priority: lower is sooner.
        salt: separates the prefix cache of requests with another one.
        include_stop: leave a stop string that ended the answer in its text.
        grammar: see AddRequest.

    Raises:
        HTTPProblem: the key has not enough tokens left.
    """
    model.require("generate")
    token_ids = prompt.token_ids if isinstance(prompt, ChatPrompt) else prompt
    watchers: tuple[AnswerWatcher, ...] = ()
    if call.meter is not None:
        messages = prompt.conversation.messages if isinstance(prompt, ChatPrompt) else None
        params, watcher = call.meter.begin_answer(token_ids, messages, params, model)
        watchers = (watcher,)
    request = AddRequest(
        request_id=request_id,
        prompt_token_ids=token_ids,
        params=params,
        eos_token_ids=tuple(model.tokenizer.eos_token_ids),
        tenant=call.tenant,
        priority=call.priority(priority),
        cache_salt=cache_salt(call, salt),
        grammar=grammar,
    )
    shown = prompt.format.markers if isinstance(prompt, ChatPrompt) else ()
    detokenizer = model.tokenizer.detokenizer(token_ids, skip_special_tokens=params.skip_special_tokens, shown=shown)
    parser = prompt.parser() if isinstance(prompt, ChatPrompt) else None
    reader = AnswerReader(detokenizer, params, include_stop=include_stop, parser=parser)
    return Answer(request, reader, model.metrics.timer(len(token_ids), call.tenant), watchers)
