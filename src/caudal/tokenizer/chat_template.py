"""A model's chat template: messages to the text of a prompt."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from caudal.errors import TemplateError
from caudal.tokenizer.chat_messages import as_parts, attempts, normalise, system_first, system_into_user
from caudal.tokenizer.template_limits import Meter, TemplateLimit, TemplateLimits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import jinja2

    from caudal.tokenizer.chat_messages import Message

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
    "+ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_MAX_SOURCE_CHARS = 1 << 20
_PROBE = "caudal probe"
_PROBE_TIME_SHARE = 0.1  # of the time that a rendering may take
_END_MARK = "\U0010fffd\U0010fffc"


class ChatTemplate:
    """A jinja2 template, compiled at its first use and run in a sandbox with limits.

    Args:
        source: the template.
        bos_token: text that the template may put at the beginning, "" if there is none.
        eos_token: the same for the end.
        limits: what one rendering may use.
    """

    def __init__(
        self, source: str, bos_token: str = "", eos_token: str = "", *, limits: TemplateLimits | None = None
    ) -> None:
        self.source = source
        self._bos_token = bos_token
        self._eos_token = eos_token
        self._limits = limits or TemplateLimits()

    def check(self) -> None:
        """Compile the source. Raises TemplateError if that fails; render would, too, but only when it is needed."""
        _ = self._compiled

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """Return the text of the prompt.

        Messages are brought into the form that the template takes: text parts are joined, tool arguments become
        dicts; if the template refuses them, a system message moves into the first user message and neighbours of
        one role are joined.

        Args:
            messages: as OpenAI's API has them.
            tools: as OpenAI's API has them.
            add_generation_prompt: end with what begins the assistant's answer.
            continue_final_message: end inside the last message, so that the answer continues it. Takes the place
                of the generation prompt.
            kwargs: more variables for the template.

        Raises TemplateError if the template is broken, refuses the messages or exceeds its limits.
        """
        prepared = normalise(messages, self.source)
        if continue_final_message:
            prepared[-1]["content"] += _END_MARK
            add_generation_prompt = False
        if prepared[0]["role"] == "system" and not self._takes_system:
            prepared = system_into_user(prepared)
        if self._wants_parts:
            prepared = as_parts(prepared)
        variables = {**kwargs, "add_generation_prompt": add_generation_prompt}
        variables.update({"tools": tools} if tools else self._without_tools)
        if tools and "xml_tools" in self.source:
            variables.setdefault("xml_tools", tools)
        meter = Meter(self._limits)
        text = self._first_accepted(prepared, variables, meter)
        if any(m["role"] == "system" and _last_words(m) not in text for m in prepared[1:]):
            text = self._first_accepted(system_first(prepared), variables, meter)
        if not continue_final_message:
            return text
        end = text.rfind(_END_MARK)
        if end < 0:
            message = "the chat template leaves out the final message, so it cannot be continued"
            raise TemplateError(message, parameter="continue_final_message")
        return text[:end]

    def _first_accepted(self, messages: list[Message], variables: dict[str, Any], meter: Meter) -> str:
        """Render the messages as they are or, if the template refuses, in the first other form that it takes."""
        refusal: TemplateError | None = None
        for form in attempts(messages):
            try:
                return self._run(form, variables, meter)
            except TemplateError as error:
                refusal = refusal or error
                if isinstance(error.__cause__, TemplateLimit):
                    break
        raise refusal or TemplateError("messages is empty; expected at least one message", parameter="messages")

    def _run(self, messages: list[Message], variables: dict[str, Any], meter: Meter) -> str:
        """Render once."""
        from caudal.tokenizer.template_sandbox import METER  # noqa: PLC0415 (jinja2 loads when it is needed)

        names = {
            "documents": None,
            **variables,
            "messages": messages,
            "bos_token": self._bos_token,
            "eos_token": self._eos_token,
        }
        meter.give(list(names.values()))
        names[METER] = meter
        template = self._compiled
        pieces: list[str] = []
        total = 0
        try:
            for piece in template.root_render_func(template.new_context(names)):
                pieces.append(piece)
                total += len(piece)
                meter.output(total)
        except Exception as error:
            # A template is a program of the model's author: it may raise anything.
            raise _refusal(error) from error
        return "".join(pieces)

    @cached_property
    def _compiled(self) -> jinja2.Template:
        from caudal.tokenizer.template_sandbox import LimitedEnvironment  # noqa: PLC0415

        if len(self.source) > _MAX_SOURCE_CHARS:
            message = f"the model's chat template has {len(self.source)} characters; at most {_MAX_SOURCE_CHARS}"
            raise TemplateError(message)
        try:
            return LimitedEnvironment().from_string(self.source)
        except Exception as error:
            message = f"the model's chat template cannot be compiled: {_describe(error)}"
            raise TemplateError(message) from error

    @cached_property
    def _without_tools(self) -> dict[str, None]:
        """The variable tools when there are none: None, or left out if the template takes only that."""
        messages = [{"role": "user", "content": _PROBE}]
        fails_with_none = not self._try(messages, {"tools": None})
        return {} if fails_with_none and self._try(messages, {}) else {"tools": None}

    @cached_property
    def _takes_system(self) -> bool:
        """False if a system message is refused, or ignored without a word."""
        messages = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "a"}]
        return self._shows_probe(as_parts(messages) if self._wants_parts else messages)

    @cached_property
    def _wants_parts(self) -> bool:
        """True if the template shows content only when it is a list of parts."""
        messages = [{"role": "user", "content": _PROBE}]
        return not self._shows_probe(messages) and self._shows_probe(as_parts(messages))

    def _shows_probe(self, messages: list[Message]) -> bool:
        return _PROBE in self._try(messages, self._without_tools)

    def _try(self, messages: list[Message], variables: Mapping[str, Any]) -> str:
        """Render a probe; return "" if the template refuses it. Raises TemplateError if it took too long to say."""
        _ = self._compiled  # before the clock starts
        limits = TemplateLimits(self._limits.time_s * _PROBE_TIME_SHARE, self._limits.output_chars)
        try:
            return self._run(messages, {"add_generation_prompt": True, **variables}, Meter(limits))
        except TemplateError as error:
            if isinstance(error.__cause__, TemplateLimit):
                raise  # what a slow machine says must not be remembered as the template's answer
            return ""


def _last_words(message: Message) -> str:
    """Return the end of a message, by which its presence in a rendered text is known."""
    content = message["content"]
    return (content if isinstance(content, str) else content[-1]["text"]).strip()[-64:]


def _refusal(error: Exception) -> TemplateError:
    """Return the error for the client."""
    import jinja2  # noqa: PLC0415

    if isinstance(error, TemplateLimit):
        message = f"the model's chat template was stopped: {error}"
    elif type(error) is jinja2.TemplateError:  # raise_exception
        message = f"the model's chat template refused the messages: {error}"
    else:
        message = f"the model's chat template failed on these messages: {_describe(error)}"
    return TemplateError(message, parameter="messages")


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"


def template_of(
    source: str | None, tokens: Sequence[str], bos_id: int | None, eos_id: int | None
) -> ChatTemplate | None:
    """Return a model's template; ChatML where there is none but its tokens exist; else None: a base model."""
    if not source:
        if "<|im_start|>" not in tokens or "<|im_end|>" not in tokens:
            return None
        source = CHATML
    bos, eos = ("" if i is None else tokens[i] for i in (bos_id, eos_id))
    return ChatTemplate(source, bos, eos)
