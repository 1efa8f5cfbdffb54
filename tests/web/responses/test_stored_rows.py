"""The table of stored responses, in a real database: who sees what, conversations, and what makes room."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.actors.database import Database
from triolet.protocol.errors import ApiError
from triolet.protocol.response_items import InputItem, ItemReference, MessageItem, OutputRefusalPart, OutputTextPart
from triolet.web.responses import stored_rows
from triolet.web.responses.store import listed
from triolet.web.responses.stored_rows import KEEP_SECONDS, LOST_SECONDS, SCHEMA, StoredRow

NOW = 1_700_000_000
ROOM = 10**6


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(tmp_path / "folder" / "responses.sqlite", SCHEMA)
    yield database
    database.close()


def row(number: int, tenant: str = "a", previous: int | None = None, created_at: int = NOW, size: int = 0) -> StoredRow:
    said = [{"type": "message", "id": f"msg_{number}_0", "role": "assistant", "content": [_part(f"answer {number}")]}]
    items: list[InputItem] = [MessageItem(role="user", content=f"question {number}{' ' * size}")]
    return StoredRow(
        id=f"resp_{number}",
        tenant=tenant,
        previous=None if previous is None else f"resp_{previous}",
        created_at=created_at,
        input=msgspec.json.encode(listed(items, str(number))),
        response=msgspec.json.encode({"id": f"resp_{number}", "output": said}),
    )


def _part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def keep(database: Database, *rows: StoredRow, storage: int = ROOM, now: int = NOW) -> None:
    for one in rows:
        await database.run(stored_rows.keep, one, storage, now)


def texts(items: list[InputItem]) -> list[str]:
    return [
        part.text
        for item in items
        if isinstance(item, MessageItem) and not isinstance(item.content, str)
        for part in item.content
        if not isinstance(part, OutputRefusalPart)
    ]


async def ids(database: Database) -> set[str]:
    return await database.run(lambda connection: {id for (id,) in connection.execute("SELECT id FROM responses")})


async def test_nothing_is_made_before_the_first_row(database: Database) -> None:
    assert not database.exists
    await keep(database, row(1))
    assert database.exists
    assert database.file.stat().st_mode & 0o077 == 0


async def test_a_conversation_is_what_led_to_it(database: Database) -> None:
    await keep(database, row(1), row(2, previous=1), row(3, previous=1), row(4, previous=3))
    earlier, items = await database.run(stored_rows.recall, "resp_4", [], "a", NOW)
    assert texts(earlier) == ["question 1", "answer 1", "question 3", "answer 3", "question 4", "answer 4"]
    assert items == []


async def test_another_process_sees_it_too(database: Database) -> None:
    await keep(database, row(1))
    other = Database(database.file, SCHEMA)
    await keep(other, row(2, previous=1))
    other.close()
    assert texts((await database.run(stored_rows.recall, "resp_2", [], "a", NOW))[0])[-1] == "answer 2"


async def test_a_key_sees_only_its_own(database: Database) -> None:
    await keep(database, row(1), row(2, tenant="b", previous=1))
    for change in (stored_rows.get, stored_rows.input_items, stored_rows.delete):
        with pytest.raises(ApiError, match="no stored response"):
            await database.run(change, "resp_1", "b", NOW)
    with pytest.raises(ApiError, match="no longer stored"):  # not the other key's part of the conversation
        await database.run(stored_rows.recall, "resp_2", [], "b", NOW)
    with pytest.raises(ApiError, match="no stored item"):
        await database.run(stored_rows.recall, None, [ItemReference(id="msg_1_0")], "b", NOW)
    assert await database.run(stored_rows.get, "resp_1", "a", NOW)


async def test_a_conversation_without_its_beginning_is_refused(database: Database) -> None:
    await keep(database, row(1), row(2, previous=1), row(3, previous=2))
    await database.run(stored_rows.delete, "resp_2", "a", NOW)
    with pytest.raises(ApiError, match="resp_2") as refused:
        await database.run(stored_rows.recall, "resp_3", [], "a", NOW)
    assert (refused.value.status, refused.value.param) == (404, "previous_response_id")


async def test_references_to_items(database: Database) -> None:
    await keep(database, row(1))
    items: list[InputItem] = [
        ItemReference(id="msg_1_in0"),
        ItemReference(id="msg_1_0"),
        MessageItem(role="user", content=[OutputTextPart(text="new")]),
    ]
    _, found = await database.run(stored_rows.recall, None, items, "a", NOW)
    assert texts(found) == ["question 1", "answer 1", "new"]
    for unknown in ("msg_1_9", "msg_9_0", "x", ""):
        with pytest.raises(ApiError) as refused:
            await database.run(stored_rows.recall, None, [ItemReference(id=unknown)], "a", NOW)
        assert (refused.value.status, refused.value.param) == (404, "input")


async def test_references_cannot_multiply_a_stored_item(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await keep(database, row(1, size=1000), row(2, size=1000))
    twice = [ItemReference(id="msg_1_0"), ItemReference(id="msg_1_0")]
    with pytest.raises(ApiError, match="msg_1_0' twice") as refused:
        await database.run(stored_rows.recall, None, twice, "a", NOW)
    assert (refused.value.code, refused.value.param) == ("invalid_value", "input")
    both = [ItemReference(id="msg_1_0"), ItemReference(id="msg_1_in0"), ItemReference(id="msg_2_0")]
    room = row(1, size=1000).bytes + row(2, size=1000).bytes
    monkeypatch.setattr(stored_rows, "MAX_CONVERSATION_BYTES", room)
    assert len((await database.run(stored_rows.recall, None, both, "a", NOW))[1]) == 3
    monkeypatch.setattr(stored_rows, "MAX_CONVERSATION_BYTES", room - 1)
    with pytest.raises(ApiError, match="more than") as refused:
        await database.run(stored_rows.recall, None, both, "a", NOW)
    assert (refused.value.code, refused.value.param) == ("invalid_value", "input")


async def test_a_key_does_not_learn_what_another_runs(database: Database) -> None:
    await database.run(stored_rows.begin, row(1), "process", ROOM, NOW)
    for tenant, status in (("a", 409), ("b", 404)):
        with pytest.raises(ApiError) as refused:
            await database.run(stored_rows.recall, "resp_1", [], tenant, NOW)
        assert refused.value.status == status


async def test_old_responses_go(database: Database) -> None:
    await keep(database, row(1, created_at=NOW), row(2, created_at=NOW + 5))
    late = NOW + KEEP_SECONDS
    with pytest.raises(ApiError, match="too old"):
        await database.run(stored_rows.get, "resp_1", "a", late)
    await keep(database, row(3, created_at=late), now=late)
    assert await ids(database) == {"resp_2", "resp_3"}


async def test_the_key_that_holds_most_makes_room(database: Database) -> None:
    storage = 3 * row(1, size=1000).bytes
    await keep(database, row(1, tenant="b", size=1000), row(2, size=1000), row(3, size=1000), storage=storage)
    await keep(database, row(4, size=1000), storage=storage)
    assert await ids(database) == {"resp_1", "resp_3", "resp_4"}


async def test_a_killed_process_makes_nothing_any_more(database: Database) -> None:
    await database.run(stored_rows.begin, row(1), "process", ROOM, NOW)
    await database.run(stored_rows.beat, "process", ["resp_1"], NOW + 10)
    assert b"failed" not in await database.run(stored_rows.get, "resp_1", "a", NOW + 10 + LOST_SECONDS)
    for _ in range(2):
        assert b'"failed"' in await database.run(stored_rows.get, "resp_1", "a", NOW + 11 + LOST_SECONDS)


async def test_another_process_cancels(database: Database) -> None:
    await database.run(stored_rows.begin, row(1), "process", ROOM, NOW)
    await database.run(stored_rows.begin, row(2), "process", ROOM, NOW)
    other = Database(database.file, SCHEMA)
    assert await other.run(stored_rows.cancel, "resp_1", "a", NOW)
    await other.run(stored_rows.delete, "resp_2", "a", NOW)
    other.close()
    assert {*await database.run(stored_rows.beat, "process", ["resp_1", "resp_2"], NOW)} == {"resp_1", "resp_2"}
    for number in (1, 2):
        await database.run(stored_rows.end, row(number), ROOM, NOW)
    assert await ids(database) == {"resp_1"}
    assert not await database.run(stored_rows.cancel, "resp_1", "a", NOW)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3000), st.booleans()), max_size=12))
def test_what_keys_hold_is_counted(changes: list[tuple[str, int, bool]]) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(SCHEMA)
    for number, (tenant, size, deletes) in enumerate(changes):
        stored_rows.keep(connection, row(number, tenant=tenant, size=size), 8000, NOW)
        if deletes:
            connection.execute("DELETE FROM responses WHERE id = ?", (f"resp_{number}",))
        counted = connection.execute("SELECT tenant, bytes FROM held ORDER BY tenant").fetchall()
        added = "SELECT tenant, sum(bytes) FROM responses GROUP BY tenant ORDER BY tenant"
        assert counted == connection.execute(added).fetchall()
        assert sum(held for _, held in counted) <= 8000
    connection.close()
