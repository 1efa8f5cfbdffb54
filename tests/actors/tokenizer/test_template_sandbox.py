"""A template's work is bounded: loops, texts, numbers; and ordinary templates notice nothing."""

import pytest

from triolet.actors.errors import EngineLoadError
from triolet.actors.tokenizer import template_sandbox
from triolet.actors.tokenizer.chat_template import ChatTemplate
from triolet.actors.tokenizer.chat_templates import choose_templates
from triolet.protocol.errors import ApiError
from triolet.protocol.requests import ChatMessage, ChatPrompt

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
X = "{% set x = 'x' * 100 %}"
# Small to make, and each holds more than any computer could write.
LISTS = "{% set x = ['x'] %}" + "{% set x = [x, x] %}" * 60
TWO_LISTS = LISTS + LISTS.replace("x", "y")
TUPLES = "{% set x = ('x',) %}" + "{% set x = (x, x) %}" * 60
MAPPINGS = "{% set x = {} %}" + "{% set x = {'a': x, 'b': x} %}" * 60
MANY_LONG = "{% set t = 'x' * 1000000 %}{% set x = [t] * 10000 %}"
TOO_MUCH = {
    "loops": ENDLESS,
    "loops whose condition is never true": ENDLESS.replace("(99999) %}{% endfor", "(99999) if false %}{% endfor"),
    "macros": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "one long text": "{{ 'x' * 10**10 }}",
    "one long list": "{{ 10**10 * [0] }}",
    "one long number": "{{ 10 ** 100000000 }}",
    "doubled by ~": X + "{% set x = x ~ x %}" * 40,
    "doubled by +": X + "{% set x = x + x %}" * 40,
    "doubled by a block": X + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40,
    "a wide field": "{{ 'x'.center(10**9) }}",
    "a wide filter": "{{ 'x' | center(10**9) }}",
    "a wide indent": "{{ ('\n' * 100000) | indent(100000) }}",
    "a wide format": "{{ '%1000000000d' % 1 }}",
    "a format with a width": "{{ '%*d' % (10**9, 1) }}",
    "another format": "{{ '{:>1000000000}'.format(1) }}",
    "a nested format": "{{ '{:>{}}'.format(1, 10**9) }}",
    "replaced": "{{ ('x' * 100000).replace('x', 'y' * 10000) }}",
    "a filter that replaces": "{{ ('x' * 100000) | replace('x', 'y' * 10000) }}",
    "a nested list, written": LISTS + "{{ x }}",
    "a nested tuple, written": TUPLES + "{{ x }}",
    "a nested mapping, written": MAPPINGS + "{{ x }}",
    "a nested namespace, written": "{% set x = 1 %}" + "{% set x = namespace(a=[x, x]) %}" * 60 + "{{ x }}",
    "many long texts, written": MANY_LONG + "{{ x }}",
    "joined by a method": MANY_LONG + "{{ ''.join(x) }}",
    "joined one by one": MANY_LONG + "{{ x | map('upper') | join }}",
    "added up": MANY_LONG + "{{ x | sum(start='') }}",
    "as JSON": LISTS + "{{ x | tojson }}",
    "as a text": LISTS + "{{ x | string }}",
    "by ~": LISTS + "{{ x ~ 'a' }}",
    "in a format": LISTS + "{{ '%s' % [x] }}",
    "in another format": LISTS + "{{ '{}'.format(x) }}",
    "in a reason": LISTS + "{{ raise_exception(x) }}",
    "compared": TWO_LISTS + "{{ x == y }}",
    "compared by a test": TWO_LISTS + "{{ x is eq(y) }}",
    "selected": TWO_LISTS + "{{ [x] | select('eq', y) | list }}",
    "sorted": TWO_LISTS + "{{ [x, y] | sort }}",
    "looked for": TWO_LISTS + "{{ x in [y] }}",
    "looked for by a test": TWO_LISTS + "{{ x is in(seq=[y]) }}",
    "counted": TWO_LISTS + "{{ [x].count(y) }}",
    "changed": LISTS + "{% for i in [1, 2] %}{{ loop.changed(x) }}{% endfor %}",
    "a key": TUPLES + "{% set y = {x: 1} %}",
    "looked up": TUPLES + "{{ {}[x] }}",
    "looked up by a method": TUPLES + "{{ {}.get(x) }}",
    "keys of pairs": TUPLES + "{{ dict([[x, 1]]) }}",
    "unlike each other": TUPLES + "{{ [x] | unique | list }}",
    "many filters": "{% set x = [0] * 5000000 %}{{ x | map('abs') | list | length }}",
    "many tests": "{% set x = [0] * 5000000 %}{{ x | select('odd') | list | length }}",
    "joined": "{{ ('x' * 100000).join(range(100000) | map('string') | list) }}",
}


@pytest.mark.parametrize("source", TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_a_template_without_end_is_refused_at_load(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_STEPS", 10_000)
    with pytest.raises(EngineLoadError, match="does not work: the model's chat template refuses: "):
        choose_templates({"default": source}, {})


def test_a_template_that_turns_endless_later_costs_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_STEPS", 10_000)
    template = ChatTemplate("{% if messages[0].content == 'go' %}" + ENDLESS + "{% endif %}done", {})
    with pytest.raises(ApiError, match="takes more than 10000 steps"):
        template.render(ChatPrompt(messages=(ChatMessage(role="user", content="go"),)))
    assert template.render(ChatPrompt(messages=(ChatMessage(role="user", content="stay"),))) == "done"


def test_every_message_brings_its_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_STEPS", 100)
    source = "{% for m in messages %}{{ m.content.strip().upper() }}{% for x in range(20) %}{% endfor %}{% endfor %}"
    prompt = ChatPrompt(messages=(ChatMessage(role="user", content=" a "),) * 1000)
    assert ChatTemplate(source, {}).render(prompt) == "A" * 1000


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for a in [1, 2, 3] if a > 1 %}{{ a }}{% else %}none{% endfor %}", "23"),
        ("{% for a in [] if a %}{% else %}none{% endfor %}", "none"),
        ("{% for i in [[1, [2]]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}", "12"),
        ("{% set x | upper %}a{{ 1 }}{% endset %}{{ x ~ 2 ~ none ~ x }}", "A12NoneA1"),
        ("{{ '%s|%03d' % ('a', 3) }}{{ '{}-{:>3}'.format(1, 2) }}{{ 2 ** 10 * 3 % 1000 }}", "a|0031-  272"),
        ("{{ [3, 1] | sort | map('string') | join(', ') }}{{ {'a': 1} | tojson(indent=1) }}", '1, 3{\n "a": 1\n}'),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length | default(100000) }}", "1"),
        ("{% macro m(a) %}{{ a }}{{ caller() }}{% endmacro %}{% call m(1) %}2{% endcall %}", "12"),
        ("{{ 'a,b'.split(',')[1].replace('b', 'cc').center(6) | trim }}{{ 70000 | string }}", "cc70000"),
    ],
)
def test_ordinary_templates_are_as_they_were(source: str, text: str) -> None:
    prompt = ChatPrompt(messages=(ChatMessage(role="user", content="Hi"),))
    assert ChatTemplate(source, {}).render(prompt) == text
