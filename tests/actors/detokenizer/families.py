"""Answers as model families write them, and what they say. `template` is a text of the family's chat template."""

# ruff: noqa: E501  (an answer of a model is one line, however long)

from typing import NamedTuple

from triolet.actors.tokenizer.call_syntax import Tools

TOOLS: Tools = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "short": {"type": "boolean"}},
    },
    "now": {"type": "object", "properties": {}},
}


class Answer(NamedTuple):
    """`calls` are names and arguments, `thinks`: the prompt opened the thoughts."""

    family: str
    template: str
    raw: str
    text: str = ""
    thoughts: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    thinks: bool = False


ROME = ("get_weather", '{"city": "Rome"}')
OSLO = ("get_weather", '{"city": "Oslo", "days": 3}')
NOW = ("now", "{}")
HERMES, CODER, PYTHON_TAG = "<tool_call>", "<tool_call><function=", "<|python_tag|>"
QWEN_3 = "<tool_call></think>"
DEEPSEEK = "<｜tool▁call▁begin｜></think>"
HARMONY = "<|channel|><|message|>"

ANSWERS = (
    Answer("hermes", HERMES, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>', calls=(ROME,)),
    Answer("the bundled model", HERMES, '<tool_call>{"name": "now", "arguments": {}}</tool_call>', calls=(NOW,)),
    Answer(
        "qwen 2.5, in parallel",
        HERMES,
        'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>',
        text="I look.",
        calls=(ROME, OSLO),
    ),
    Answer(
        "qwen 3",
        QWEN_3,
        '<think>\nThe user asks <b>me</b>.\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>',
        thoughts="The user asks <b>me</b>.",
        calls=(ROME,),
    ),
    Answer("qwen 3, no thoughts", QWEN_3, "Hello  there.\n", text="Hello  there.\n"),
    Answer("qwen 3, opened by the prompt", QWEN_3, "Well.\n</think>\n\nYes.", text="Yes.", thoughts="Well.", thinks=True),
    Answer("qwen 3, cut", QWEN_3, "<think>\nWell. ", thoughts="Well. "),
    Answer("a mark inside the text", QWEN_3, "Write <think> first.", text="Write <think> first."),
    Answer(
        "an argument that has the mark",
        HERMES,
        '<tool_call>{"name": "get_weather", "arguments": {"city": "</tool_call>"}}</tool_call>',
        calls=(("get_weather", '{"city": "</tool_call>"}'),),
    ),
    Answer(
        "qwen 3 coder",
        CODER,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\nItaly\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "<parameter=short>\nTrue\n</parameter>\n</function>\n</tool_call>",
        calls=(("get_weather", '{"city": "Rome\\nItaly", "days": 3, "short": true}'),),
    ),
    Answer(
        "glm 4.5",
        "<tool_call><arg_key></think>",
        "<think>Hm.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        thoughts="Hm.",
        calls=(OSLO,),
    ),
    Answer("llama 3.1", PYTHON_TAG, '{"name": "get_weather", "parameters": {"city": "Rome"}}', calls=(ROME,)),
    Answer(
        "llama 3.1, marked and two of them",
        PYTHON_TAG,
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Rome"}}; {"name": "now", "parameters": {}}',
        calls=(ROME, NOW),
    ),
    Answer("llama 3.1, JSON that is no call", PYTHON_TAG, '{"city": "Rome"}', text='{"city": "Rome"}'),
    Answer("llama 3.1, text", PYTHON_TAG, "The {sun} shines.", text="The {sun} shines."),
    Answer("llama 4", "<|python_start|>", '[get_weather(city="Rome"), now()]', calls=(ROME, NOW)),
    Answer("llama 4, a list", "<|python_start|>", "[1] is a source.", text="[1] is a source."),
    Answer(
        "mistral, a list",
        "[TOOL_CALLS]",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Rome"}}, {"name": "now", "arguments": {}}]',
        calls=(ROME, NOW),
    ),
    Answer(
        "mistral, named",
        "[TOOL_CALLS][ARGS][THINK][/THINK]",
        '[THINK]Hm.[/THINK]So:[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{}',
        text="So:",
        thoughts="Hm.",
        calls=(ROME, NOW),
    ),
    Answer("gemma", "```tool_code", 'Sure.\n```tool_code\nprint(get_weather(city="Rome"))\n```', text="Sure.", calls=(ROME,)),
    Answer(
        "gemma, JSON",
        "```tool_code",
        '```tool_code\n[{"name": "get_weather", "arguments": {"city": "Rome"}}]\n```',
        calls=(ROME,),
    ),
    Answer(
        "phi 4 mini",
        "<|tool_call|>",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome"}}]<|/tool_call|>',
        calls=(ROME,),
    ),
    Answer(
        "gpt-oss",
        HARMONY,
        "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>',
        text="I look.",
        thoughts="They ask.",
        calls=(ROME,),
    ),
    Answer(
        "gpt-oss, the function first",
        HARMONY,
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Rome"}',
        calls=(ROME,),
    ),
    Answer(
        "gpt-oss, final",
        HARMONY,
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Four.<|return|>",
        text="Four.",
        thoughts="Easy.",
    ),
    Answer(
        "deepseek v3",
        DEEPSEEK,
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Rome"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        text="I look.",
        calls=(ROME, NOW),
    ),
    Answer(
        "deepseek v3.1, thinking",
        DEEPSEEK,
        "Hm.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        thoughts="Hm.",
        calls=(ROME,),
        thinks=True,
    ),
    Answer(
        "kimi k2",
        "<|tool_call_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>',
        calls=(ROME,),
    ),
    Answer("seed", "<seed:think></seed:think>", "<seed:think>Hm.</seed:think>Yes.", text="Yes.", thoughts="Hm."),
)  # fmt: skip

# Wrong calls: all of it is text.
GARBLED = (
    (HERMES, '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}</tool_call>'),
    (HERMES, '<tool_call>{"name": "unknown", "arguments": {}}</tool_call> and more'),
    (HERMES, '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
    (HERMES, '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "now", "arguments": {"a": 1e999}}</tool_call>'),
    (HERMES, "  <tool_call>" + '{"name": "now", "arguments": ' + '{"a": ' * 3000 + "1" + "}" * 3001 + "</tool_call>\n"),
    (HERMES, "a <tool_call>"),
    (CODER, "<tool_call><function=now>oops</function></tool_call>"),
    (CODER, "<tool_call><function=get_weather><parameter=city>Ro"),
    ("<tool_call><arg_key>", "<tool_call>get_weather\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>"),
    (PYTHON_TAG, '{"name": "get_weather", "parameters": '),
    (PYTHON_TAG, '{"name": "unknown", "parameters": {}}'),
    ("<|python_start|>", "[get_weather(city=open('/etc/passwd').read())]"),
    ("[TOOL_CALLS]", "[TOOL_CALLS]now[ARGS]{[TOOL_CALLS]"),
    ("```tool_code", "```tool_code\n" + "(" * 1000 + "\n```"),
    (DEEPSEEK, "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{]<｜tool▁call▁end｜>"),
    (HARMONY, "no header at all"),
)
