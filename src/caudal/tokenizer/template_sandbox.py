"""A jinja2 sandbox for templates from untrusted files.

jinja2's own sandbox keeps a template from Python's inside. It does not keep it from running for ever or from
filling memory. This one rewrites the parsed template so that loops, macros and blocks look at the clock at every
turn and every literal and slice is measured; operators, calls, filters and outputs are measured where jinja2 lets
the environment take part. Only methods and filters on a list can be used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from caudal.tokenizer.template_filters import (
    QuietNamespace,
    check_format,
    check_replace,
    metered_filters,
    plain_filters,
    raise_exception,
    strftime_now,
)
from caudal.tokenizer.template_limits import MAX_INT_BITS, NODE_SIZE, Meter, TemplateLimit

if TYPE_CHECKING:
    from jinja2.parser import Parser
    from jinja2.runtime import Context

# Not names that a template could write.
METER = "the meter"
_TURN, _LITERAL, _CONCAT = "a turn", "a literal", "a concatenation"

_STR_METHOD_NAMES = (
    "capitalize casefold count endswith find format index isalnum isalpha isascii isdecimal isdigit islower "
    "isnumeric isspace isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title upper"
)
_STR_METHODS = frozenset(_STR_METHOD_NAMES.split())
_DICT_METHODS = frozenset(("get", "items", "keys", "values"))
_LIST_METHODS = frozenset(("append", "count", "index", "pop"))


class GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}`: marks the assistant's words for training; here only its content."""

    tags = {"generation"}  # noqa: RUF012 (as jinja2 asks for it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rewriter(NodeTransformer):
    """Puts the measuring into the parsed template."""

    def _call(self, name: str, value: nodes.Expr) -> nodes.Filter:
        return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)

    def _with_turn(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        size = sum(len(data.data) for data in node.find_all(nodes.TemplateData)) + NODE_SIZE
        turn = nodes.ExprStmt(self._call(_TURN, nodes.Const(size, lineno=node.lineno)), lineno=node.lineno)
        node.body.insert(0, turn)
        return node  # type: ignore[no-any-return]

    visit_For = visit_Macro = visit_CallBlock = visit_Block = visit_FilterBlock = _with_turn  # noqa: N815 (visitor's names)

    def _measured(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        is_target = getattr(node, "ctx", "load") != "load"
        return node if is_target else self._call(_LITERAL, node)

    visit_List = visit_Tuple = visit_Dict = _measured  # noqa: N815

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return self._call(_LITERAL, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return self._call(_CONCAT, nodes.List(node.nodes, lineno=node.lineno))


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox. Every rendering passes its Meter as the variable METER."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # folding constants would run the template's code while it is compiled
            autoescape=False,
            extensions=[LoopControlExtension, GenerationTag],
            finalize=_finalize,
        )
        self.filters = {name: _metered(function) for name, function in plain_filters().items()}
        self.filters.update({name: _metered(_with_meter(f)) for name, f in metered_filters().items()})
        self.filters.update({_TURN: _turn, _LITERAL: _literal, _CONCAT: _concat})
        for name in ("lipsum", "cycler", "joiner"):
            self.globals.pop(name, None)
        self.globals["namespace"] = QuietNamespace
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Rewriter().visit(super()._parse(source, name, filename))  # type: ignore[no-any-return]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow the methods on the lists above; none of numbers."""
        if isinstance(obj, str):
            return attr in _STR_METHODS
        if isinstance(obj, dict):
            return attr in _DICT_METHODS
        if isinstance(obj, list | tuple):
            return attr in _LIST_METHODS or attr in getattr(obj, "_fields", ())
        if obj is None or isinstance(obj, int | float | complex | bytes):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`, after a look at how large the result is."""
        meter = _meter(context)
        if operator == "%" and isinstance(left, str):
            check_format(meter, left, right)
        elif operator == "+" and isinstance(left, str | list | tuple):
            meter.build(meter.size(left) + meter.size(right))
        elif operator in ("*", "**"):
            _check_product(meter, operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, PYI063 (as jinja2 has it)
        """Call a method, a macro or a function, after a look at how large the result may be."""
        meter = _meter(__context)
        meter.tick()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            _check_text_method(meter, owner, __obj.__name__, args, kwargs)
        elif isinstance(owner, list) and getattr(__obj, "__name__", "") in ("append", "pop"):
            meter.change(owner, *args)
        return _watch(meter, super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return str.format made safe, if value is that method."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        pattern = value.__self__

        @pass_context
        def limited(context: Context, *args: Any, **kwargs: Any) -> str:
            check_format(_meter(context), pattern, [args, kwargs])
            return wrapped(*args, **kwargs)

        return limited


def _meter(context: Context) -> Meter:
    meter = context.resolve_or_missing(METER)
    if not isinstance(meter, Meter):
        message = "a template was rendered without its limits"
        raise SecurityError(message)
    return meter


def _check_product(meter: Meter, operator: str, left: Any, right: Any) -> None:
    """Account for `*` and `**`: a text or list repeated, or large integers."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_INT_BITS:
            message = f"it computed an integer of more than {MAX_INT_BITS} bits"
            raise TemplateLimit(message)
    elif operator == "*":
        for part, times in ((left, right), (right, left)):
            if isinstance(part, str | list | tuple) and isinstance(times, int):
                meter.build(meter.size(part) * max(times, 0))


def _check_text_method(meter: Meter, text: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Account for the methods of strings whose result may be much larger than the string."""
    if name == "replace" and len(args) >= 2 and all(isinstance(a, str) for a in args[:2]):
        check_replace(meter, text, args[0], args[1])
    elif name == "join" and args:
        # An iterator would be used up by the look; templates join lists.
        if not isinstance(args[0], list | tuple):
            message = "join: expected a list"
            raise TypeError(message)
        meter.build(meter.size(args[0]) + len(text) * len(args[0]))
    elif name in ("split", "rsplit", "splitlines"):
        separator = args[0] if args else kwargs.get("sep")
        is_text = isinstance(separator, str) and separator
        count = text.count(separator) if is_text else len(text) // 2  # type: ignore[arg-type]
        meter.build(min(len(text), count) + len(text))


def _watch(meter: Meter, value: Any) -> Any:
    """Account for a value that a call or a filter returned; make a generator look at the clock."""
    if isinstance(value, str | list | tuple | dict):
        meter.build(meter.size(value))
    elif isinstance(value, Iterator):
        return _watched(meter, value)
    return value


def _watched(meter: Meter, values: Iterator[Any]) -> Iterator[Any]:
    for value in values:
        meter.tick()
        yield value


def _with_meter(function: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    @wraps(function)
    def run(context: Context, *args: Any, **kwargs: Any) -> Any:
        return function(_meter(context), *args, **kwargs)

    return run


def _metered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that looks at the clock before and at the size of the result after."""
    wanted = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    @pass_context
    def run(context: Context, *args: Any, **kwargs: Any) -> Any:
        meter = _meter(context)
        meter.tick()
        if args and isinstance(args[0], str):
            meter.build(len(args[0]))
        first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        leading = () if wanted is None else (first[wanted],)
        return _watch(meter, function(*leading, *args, **kwargs))

    return run


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """Account for an output."""
    meter = _meter(context)
    meter.build(meter.size(value))
    return value


@pass_context
def _turn(context: Context, size: int) -> None:
    """Account for one turn of a loop, one call of a macro: its fixed text is `size` long."""
    _meter(context).build(size)


@pass_context
def _literal(context: Context, value: Any) -> Any:
    """Account for a list, tuple, dict or slice."""
    return _watch(_meter(context), value)


@pass_context
def _concat(context: Context, parts: list[Any]) -> str:
    """The operator ~."""
    meter = _meter(context)
    meter.build(sum(map(meter.size, parts)))
    return "".join(map(str, parts))
