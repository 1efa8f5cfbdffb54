"""The environment in which a chat template runs: jinja's sandbox, with bounds on its work.

A template is a program from the checkpoint. The sandbox hides Python from it, but not the machine: loops within loops,
`'x' * 10**10` or a text that is doubled forty times would take the server's only event loop, or its memory. So each
rendering has a budget of steps: one for a turn of a loop, a filter or a test, twenty for a call, and more for what is
long. What would be larger than `MAX_ITEMS` is refused before it is made. Real templates take a few dozen steps per
message.

A small list can hold itself a billion times over: `{% set x = [x, x] %}`, thirty times. That is made in no time, but to
write it, to compare it or to look it up takes as long as all that it holds. So before anything of the kind the value
is `weighed`: walked through, as far as the budget reaches.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import wraps
from itertools import chain
from typing import Any, Final, cast

from jinja2 import TemplateError, nodes, pass_context
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from .template_rewrite import COPIED, SPEND, WEIGH, CountedTemplate

MAX_STEPS: Final = 1_000_000  # about a second
MESSAGE_STEPS: Final = 100  # more for each message
_CALL_STEPS: Final = 20
MAX_ITEMS: Final = 32 << 20  # characters or elements: eight times the largest body
_MAX_BITS: Final = 1 << 16  # of a product or power
_MAX_WIDTH: Final = 1 << 20  # the largest number that a method or filter may be told
_WIDTH: Final = re.compile(r"\d{5}|\*|:[^{}]*\{")  # of a field in a format: five digits, or taken from the arguments
_MADE: Final = (str, bytes, list, tuple)  # what is charged by its length
_JINJAS: Final = (Namespace, LoopContext)  # hold only what the template put there; other names begin with `_`
_LIGHT: Final = frozenset({int, float, bool, type(None)})
# Filters that take one list apart and look no deeper; each message of a long conversation may ask for its length.
_SHALLOW: Final = frozenset({
    "attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "random", "reject",
    "rejectattr", "reverse", "select", "selectattr", "slice",
})  # fmt: skip


class TooMuchWork(TemplateError):
    """The template's work has no end in sight."""


class _Budget(threading.local):
    """Of the rendering in this thread."""

    steps = MAX_STEPS


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """`begin` starts the budget of a rendering. Turns are dictionaries, so keys are looked up before attributes."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})  # for these `call_binop` is called

    def __init__(self, **options: Any) -> None:  # Any: jinja's own options
        super().__init__(finalize=self.weighed, **options)
        self._budget = _Budget()
        self.filters = {name: self.bounded(function, name not in _SHALLOW) for name, function in self.filters.items()}
        self.tests = {name: self._counted(cast("Callable[..., Any]", test)) for name, test in self.tests.items()}

        @pass_context  # so that jinja does not take it for a constant
        def spend(_context: Context, steps: int) -> bool:
            return self.spend(steps)

        self.filters |= {SPEND: spend, WEIGH: self.weighed, COPIED: self._copied}
        del self.globals["lipsum"]

    def begin(self, messages: int) -> None:
        self._budget.steps = MAX_STEPS + MESSAGE_STEPS * messages

    def spend(self, steps: int = 1) -> bool:
        """True, so that it can stand in a condition."""
        self._budget.steps -= steps
        if self._budget.steps < 0:
            raise TooMuchWork(f"it takes more than {MAX_STEPS} steps, and {MESSAGE_STEPS} for each message")
        return True

    def charged(self, value: Any) -> Any:
        """A value that was just made."""
        if isinstance(value, _MADE) and (size := len(cast("Sized", value))) >= 8:
            _check_items(size)
            self.spend(size >> (10 if isinstance(value, (str, bytes)) else 3))
        return cast("Any", value)

    def weighed(self, value: Any) -> Any:
        """A value of which all that it holds will be read: to be written, compared or hashed, for example."""
        if type(value) in _LIGHT:
            return value
        if type(value) is str:  # most of them are short
            if len(value) >= 1024:
                self.spend(len(value) >> 10)
            return value
        items = characters = 0
        pending = [iter((value,))]
        while pending:
            for one in pending[-1]:
                items += 1
                if items & 1:
                    self.spend()
                if isinstance(one, (str, bytes)):
                    characters += len(one)
                elif (held := _held_by(one)) is not None:
                    pending.append(held)
                    break
            else:
                pending.pop()
            _check_items(items + characters)
        self.spend(characters >> 10)
        return value

    def getattr(self, obj: Any, attribute: str) -> Any:  # Any: as jinja2 declares it
        if type(obj) in _JINJAS and not attribute.startswith("_"):  # half of a rendering's time otherwise
            try:
                return getattr(obj, attribute)
            except AttributeError:
                pass
        if type(obj) is dict and attribute in obj and not hasattr(dict, attribute):
            return cast("dict[str, object]", obj)[attribute]
        return super().getattr(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            return self.charged(left + right)
        match operator, left, right:
            case "*", int(), int():
                _check_bits(left.bit_length() + right.bit_length())
            case "*", str() | bytes() | list() | tuple(), int():
                _check_items(len(cast("Sized", left)) * right)
            case "*", int(), str() | bytes() | list() | tuple():
                _check_items(left * len(cast("Sized", right)))
            case "**", int(), int():
                _check_bits(left.bit_length() * right)
            case "%", str(), _ if _WIDTH.search(left):
                raise TooMuchWork(f"{left[:100]!r} formats to a text of any length")
            case "%", str(), _:
                self.weighed(right)
            case _:
                pass
        return self.charged(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self.spend(_CALL_STEPS)
        _check_method(__obj, args)
        if not isinstance(__obj, Macro | LoopContext) and __obj is not Namespace:  # these only hand them on
            for one in (getattr(__obj, "__self__", None), *args, *kwargs.values()):
                __self.weighed(one)
        return __self.charged(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        owner = getattr(value, "__self__", None)
        if isinstance(owner, str) and value.__name__ in ("format", "format_map") and _WIDTH.search(owner):
            raise TooMuchWork(f"{owner[:100]!r} formats to a text of any length")
        return super().wrap_str_format(value)

    def _copied(self, value: Any) -> Any:
        """A slice: of a list it copies no more than places."""
        if isinstance(value, _MADE) and (size := len(cast("Sized", value))) >= 1024:
            self.spend(size >> 10)
        return cast("Any", value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, self.weighed(argument))

    def _counted(self, test: Callable[..., Any]) -> Callable[..., Any]:
        """A test that costs a step; one that compares costs what is compared."""

        @wraps(test)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.spend()
            for one in (*args, *kwargs.values()) if len(args) > 1 or kwargs else ():
                self.weighed(one)
            return test(*args, **kwargs)

        return counted

    def bounded(self, function: Callable[..., Any], deep: bool = True) -> Callable[..., Any]:
        """A filter whose arguments after the first, and whose result, are checked. It keeps its marks for jinja.

        One that goes `deep` gets lists in place of iterators, so that it can be known what it gets.
        """

        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            self.spend()
            if deep:
                args = tuple(
                    self._all_of(cast("Iterator[object]", one)) if isinstance(one, Iterator) else one for one in args
                )
                for one in (*args, *kwargs.values()):
                    self.weighed(one)
                    if isinstance(one, str) and len(one) >= 64:  # most filters of texts are slow
                        self.spend(len(one) >> 6)
            # Before the value there may be jinja's context or environment.
            sizes = [len(cast("Sized", one)) for one in args[:2] if isinstance(one, _MADE)]
            for argument in (*args[1:], *kwargs.values()):
                if isinstance(argument, int):
                    _check_width(argument)
                    if function.__name__ == "do_indent":  # of every line
                        _check_items(argument * max(sizes, default=1))
                elif isinstance(argument, str) and len(argument) > 64:  # for example, what `replace` puts in
                    _check_items(len(argument) * max(sizes, default=1))
            return self.charged(function(*args, **kwargs))

        return checked

    def _all_of(self, items: Iterable[object]) -> list[object]:
        """A list of them that is made as far as the budget reaches."""
        return [item for item in items if self.spend()]

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        """jinja's hook between parsing and code."""
        CountedTemplate().visit(source)
        source.set_environment(self)
        return super()._generate(source, *args, **kwargs)


def _held_by(value: Any) -> Iterator[object] | None:
    """What a value holds and writes with itself; None if nothing."""
    if isinstance(value, dict):
        pairs = cast("dict[object, object]", value)
        return chain(pairs.keys(), pairs.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return iter(cast("Iterable[object]", value))
    if isinstance(value, Namespace):
        return iter((cast("object", getattr(value, "_Namespace__attrs")),))  # noqa: B009 - a name private to its class
    return None


def _check_items(count: int) -> None:
    if count > MAX_ITEMS:
        raise TooMuchWork(f"it makes a text or list of {count} items, more than {MAX_ITEMS}")


def _check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise TooMuchWork(f"it computes a number of {bits} bits, more than {_MAX_BITS}")


def _check_width(width: int) -> None:
    if abs(width) > _MAX_WIDTH:
        raise TooMuchWork(f"it asks for {width} of something, more than {_MAX_WIDTH}")


def _check_method(function: Any, args: tuple[Any, ...]) -> None:
    """Methods of texts that make much out of little."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if not isinstance(owner, (str, bytes, int)):
        return
    for argument in args:
        if isinstance(argument, int):
            _check_width(argument)
    if isinstance(owner, str | bytes):
        if name == "replace" and len(args) >= 2 and isinstance(args[1], Sized):
            _check_items(len(args[1]) * (len(owner) + 1))
        if name == "join" and args and isinstance(args[0], Sized):
            _check_items(len(owner) * len(args[0]))
