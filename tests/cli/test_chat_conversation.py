"""What the model is sent, and what /set, /save and /load accept; without a model."""

from pathlib import Path

import msgspec
import pytest

from triolet.cli.chat_commands import change_setting, change_system, load, save
from triolet.cli.chat_conversation import ChatCommandError, ChatConversation


def _conversation() -> ChatConversation:
    conversation = ChatConversation("Be brief.", {"temperature": 0.5})
    for number in range(3):
        conversation.question = f"q{number}"
        conversation.answered(f"a{number}")
    return conversation


def _contents(conversation: ChatConversation) -> list[str]:
    return [message.content for message in conversation.messages(conversation.left_out)]


def test_the_oldest_turns_are_left_out_and_never_the_system_prompt_or_the_question() -> None:
    conversation = _conversation()
    conversation.question = "q3"
    assert conversation.leave_out_oldest()
    assert _contents(conversation) == ["Be brief.", "q1", "a1", "q2", "a2", "q3"]
    assert [conversation.leave_out_oldest() for _ in range(3)] == [True, True, False]
    assert _contents(conversation) == ["Be brief.", "q3"]
    assert len(conversation.messages()) == 8  # all is still there, to be saved


def test_a_question_is_taken_back_with_its_answer_or_alone() -> None:
    conversation = _conversation()
    conversation.left_out = 3
    conversation.take_back()
    assert _contents(conversation) == ["Be brief."]
    conversation.left_out, conversation.question = 0, "unanswered"
    assert conversation.last_question == "unanswered"
    conversation.take_back()
    assert conversation.last_question == "q1"
    assert _contents(conversation) == ["Be brief.", "q0", "a0", "q1", "a1"]


def test_a_limit_larger_than_the_room_becomes_the_room() -> None:
    conversation = ChatConversation(settings={"max_tokens": 500})
    assert conversation.request("m", 100)["max_tokens"] == 100
    assert conversation.request("m", 1000)["max_tokens"] == 500
    assert "max_tokens" not in ChatConversation().request("m", 100)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("temperature 3", "temperature: Expected `float` <= 2.0"),
        ("temperature warm", "temperature: Expected `float"),
        ("temperature", "/set temperature needs a value"),
        ("messages []", "no setting messages; there are temperature, top_p"),
    ],
)
def test_a_wrong_setting_is_refused_and_changes_nothing(typed: str, said: str) -> None:
    conversation = _conversation()
    with pytest.raises(ChatCommandError) as refused:
        change_setting(conversation, typed)
    assert str(refused.value).startswith(said)
    assert conversation.settings == {"temperature": 0.5}


def test_settings_are_shown_changed_and_removed() -> None:
    conversation = _conversation()
    assert change_setting(conversation, 'stop ["\\n"]') == 'temperature 0.5\nstop ["\\n"]'
    assert change_setting(conversation, "reasoning_effort low").endswith('reasoning_effort "low"')
    for name in ("stop", "reasoning_effort", "temperature"):
        shown = change_setting(conversation, f"{name} default")
    assert shown == "all settings are the model's own"


def test_the_system_prompt_is_changed_and_removed() -> None:
    conversation = _conversation()
    assert change_system(conversation, "") == "system prompt: Be brief."
    assert change_system(conversation, "Rhyme.") == "system prompt: Rhyme."
    assert change_system(conversation, "off") == "no system prompt"
    assert _contents(conversation)[0] == "q0"


def test_a_saved_conversation_comes_back_and_only_the_user_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    conversation = _conversation()
    conversation.question = "q3"
    assert save(conversation, str(file), "m") == f"saved 8 messages to {file}"
    assert file.stat().st_mode & 0o777 == 0o600
    assert msgspec.json.decode(file.read_bytes())["model"] == "m"
    again = ChatConversation()
    assert load(again, str(file)) == f"loaded 8 messages from {file}; the last question has no answer yet: /retry"
    assert (again.messages(), again.settings) == (conversation.messages(), conversation.settings)
    with pytest.raises(ChatCommandError, match="exists; save to another file"):
        save(conversation, str(file), "m")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not json", "The body is not valid JSON"),
        ('{"messages": []}', "messages: "),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "user and assistant must take turns"),
        ('{"messages": [{"role": "user", "content": "a", "name": "x"}]}', "plain text of system, user, assistant"),
        ('{"messages": [{"role": "user", "content": "a"}], "n": 2}', "n is no setting of a chat"),
        ('{"messages": [{"role": "user", "content": "a"}], "top_p": 2}', "top_p: Expected `float` <= 1.0"),
    ],
)
def test_a_file_that_is_no_conversation_changes_nothing(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "chat.json"
    file.write_text(text)
    conversation = _conversation()
    with pytest.raises(ChatCommandError) as refused:
        load(conversation, str(file))
    assert said in str(refused.value)
    assert _contents(conversation) == _contents(_conversation())
