"""The tree of tasks: who waits where, for whom, and that thousands of tasks make a short tree."""

import trio
from trio.testing import wait_all_tasks_blocked

from triolet.actors.observe.task_tree import ALIKE, MOST_LINES, task_tree


async def tree_of(nursery: trio.Nursery) -> str:
    await wait_all_tasks_blocked()
    return "\n".join(task_tree(nursery.parent_task))


async def test_a_full_channel_and_the_holder_of_a_lock_are_named() -> None:
    send, receive = trio.open_memory_channel[str](1)
    lock = trio.Lock()

    async def give() -> None:
        await send.send("first")
        await send.send("second")

    async def hold() -> None:
        async with lock:
            await trio.sleep_forever()

    async def want() -> None:
        async with lock:
            raise AssertionError("it is held")

    async def follow() -> None:
        async for _ in quiet_receive:
            pass

    quiet_send, quiet_receive = trio.open_memory_channel[str](0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(give)
        nursery.start_soon(hold)
        await wait_all_tasks_blocked()
        nursery.start_soon(want)
        nursery.start_soon(follow)
        tree = await tree_of(nursery)
        nursery.cancel_scope.cancel()
    assert "give, in MemorySendChannel.send (1 of 1 places are taken)" in tree
    assert "want, in Lock.acquire (held by " in tree, tree
    assert ".hold)" in tree
    assert "follow, in MemoryReceiveChannel.receive" in tree
    assert f"{__name__.replace('.', '/')}.py:" in tree
    del receive, quiet_send


async def test_tasks_that_are_alike_are_counted() -> None:
    async def wait(event: trio.Event) -> None:
        await event.wait()

    one, tasks = trio.Event(), 40 * ALIKE
    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(wait, one)
        tree = await tree_of(nursery)
        nursery.cancel_scope.cancel()
    assert f"{ALIKE} times " in tree
    assert f"and {tasks - ALIKE} more " in tree
    assert len(tree.splitlines()) < 10


async def test_a_deep_tree_is_cut() -> None:
    async def deeper(left: int) -> None:
        async with trio.open_nursery() as nursery:
            if left:
                nursery.start_soon(deeper, left - 1)
            else:
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deeper, MOST_LINES + 10)
        tree = (await tree_of(nursery)).splitlines()
        nursery.cancel_scope.cancel()
    assert len(tree) == MOST_LINES + 1
    assert tree[-1].startswith("and ")
