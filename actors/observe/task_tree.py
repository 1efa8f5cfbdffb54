"""What every trio task of this process waits for, as an indented tree. Names of code only: no text of a request.

A line is a task's function, where it waits in our code, and the call of trio that it waits in: for a lock with the task
that holds it, for a full channel with its size. Tasks that are alike are counted, so the tree of thousands of
connections is short. Reading a task takes 10 µs; of those in one nursery with one name, at most ALIKE are read.
"""

from collections import Counter
from types import FrameType
from typing import Any, Final

import trio
from trio.lowlevel import Task

ALIKE: Final = 100
MOST_LINES: Final = 300


def task_tree(root: Task) -> list[str]:
    """`root` and everything below it. Another thread may call it, if the event loop is stuck."""
    lines = [*_lines(root)]
    return lines[:MOST_LINES] + ([f"and {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else [])


def _lines(task: Task) -> tuple[str, ...]:
    name, waits = _short(task.name), _waits(task.coro)
    own = name.endswith("." + waits.partition(",")[0].rpartition(" ")[2])  # it is in the task's own function
    found = [waits if own else f"{name}: {waits}"]
    for number, nursery in enumerate(task.child_nurseries, 1):
        if len(task.child_nurseries) > 1:
            found.append(f"  nursery {number}")
        read, alike = Counter[str](), Counter[tuple[str, ...]]()
        for child in nursery.child_tasks:
            read[child.name] += 1
            if read[child.name] <= ALIKE:
                alike[_lines(child)] += 1
        for (first, *others), count in sorted(alike.items()):
            found += [f"  {first}" if count == 1 else f"  {count} times {first}", *(f"  {line}" for line in others)]
        found += [f"  and {count - ALIKE} more {name}" for name, count in read.items() if count > ALIKE]
    return tuple(found)


def _waits(coroutine: Any) -> str:  # Any: coroutines, generators and what else can be awaited
    ours = call = None
    while (frame := _first(coroutine, "cr_frame", "gi_frame", "ag_frame")) is not None:
        if not str(frame.f_globals.get("__name__")).startswith("trio."):
            ours, call = frame, None
        elif call is None or call.f_code.co_name in ("__anext__", "__aenter__"):
            call = frame
        coroutine = _first(coroutine, "cr_await", "gi_yieldfrom", "ag_await")
    place = "" if ours is None else _place(ours)
    return ", ".join(filter(None, (place, "" if call is None else _call(call)))) or "runs"


def _first(thing: object, *names: str) -> Any:  # Any: a frame, or what is awaited
    return next((value for name in names if (value := getattr(thing, name, None)) is not None), None)


def _place(frame: FrameType) -> str:
    code, module = frame.f_code, str(frame.f_globals.get("__name__"))
    return f"{_short(module).replace('.', '/')}.py:{frame.f_lineno} {_short(code.co_qualname)}"


def _short(name: str) -> str:
    return name.removeprefix("triolet.").replace("<locals>.", "")


def _call(frame: FrameType) -> str:
    if frame.f_code.co_qualname == "NurseryManager.__aexit__":
        return "waits for the tasks below"
    waited: object = frame.f_locals.get("self")
    name, kind = frame.f_code.co_name, type(waited).__name__
    match waited:
        case trio.MemorySendChannel():
            room = waited.statistics()
            more = f" ({room.current_buffer_used} of {room.max_buffer_size:g} places are taken)"
        case trio.Lock() if (owner := waited.statistics().owner) is not None:
            more = f" (held by {_short(owner.name)})"
        case _:
            more = ""
    return f"in {name}" if waited is None else f"in {kind}.{name}{more}"
