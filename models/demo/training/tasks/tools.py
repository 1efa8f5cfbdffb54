"""Call a given tool: the system message lists the tools, as the chat template writes them; the answer is one tool call.

The template writes one line per tool: its name and a JSON object of parameter names and types. Names of tools and parameters
vary, and some are made up, so that the model copies them from the list. Requests that no tool serves are answered in words.
"""

# ruff: noqa: E501  (a wording is one line, however long: it reads as the sentence it is)

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from .language import Conversation, asked, expand, words
from .names import COLORS, DAYS, FOODS, ITEMS, city, different, name, word

TOOLS_HEADING = "Tools:"
SYSTEM = (
    "",
    "You are a helpful assistant.",
    "You are a helpful assistant. Call a tool when it helps.",
    "You can call tools.",
    "Be brief.",
)


@dataclass(frozen=True, slots=True)
class Intent:
    """What a tool does: patterns for its name, its parameters (name pattern, type, kind of value), and for requests."""

    names: str
    parameters: tuple[tuple[str, str, str], ...]
    asked: tuple[str, ...]
    unseen: tuple[str, ...]


INTENTS = (
    Intent("[[get|find|check|fetch|show|current|local|city]_[weather|forecast]|weather|forecast|weather_[report|info|now|lookup]]", (("[city|location|place|town]", "string", "city"),),
           ("[What is|What's|How is] the weather [in|like in] {0}[ today| now|]?", "[Will it|Does it] rain in {0}[ today|]?", "Weather in {0}?",
            "[Is it|How] [warm|cold|sunny] [is it |]in {0}[ today|]?", "[Get|Check|Tell me|Show me] the weather in {0}[.|]",
            "[Do I|Should I|Must I] [need|take|wear] [a coat|a jacket|boots|sunglasses] in {0}[ today|]?", "How [does|will] the weather [look|be] in {0}[ today|]?", "I [need|want] the [weather|forecast] [for|in|of] {0}[.|]"),
           ("Do I need an umbrella in {0}?", "What does the weather look like in {0}?")),
    Intent("[[get|find|current|local|city|tell|world]_[time|clock]|time_[in|of|now|lookup]|clock]", (("[city|location|place|town]", "string", "city"),),
           ("What time is it in {0}[ now|]?", "[Tell me|Get|Show me] the time in {0}[.|]", "[What is|What's] the [local |current |]time in {0}?",
            "[I want|I'd like] [to know |]the time in {0}[.|]", "[Is it|How] [late|early|already late] [is it |]in {0}[ now|]?", "[Time|Clock] in {0}[?|]"),
           ("How late is it in {0}?", "I need the time in {0}.")),
    Intent("[[set|start|new|make|add|begin]_[timer|alarm|countdown]|timer|alarm|timer_[set|start]]", (("[minutes|duration|length]", "integer", "number"),),
           ("[Set|Start] a timer for {0} minutes[.|]", "[Wake me|Remind me] in {0} minutes[.|]", "Timer[:| for] {0} minutes",
            "[I want|Make|Give me|Please start] a [timer|countdown] [for|over] {0} minutes[.|]", "[Tell me|Call me|Ring|Warn me] [when|after] {0} minutes[ have passed| are up|][.|]", "{0} minutes[, please| on the timer|][.|]"),
           ("I need a timer of {0} minutes.", "Let me know when {0} minutes are over.")),
    Intent("[[send|write|post|new|make]_[message|text|note|mail]|message|write_to|text_message|message_[send|person]]", (("[to|recipient|person|name]", "string", "name"), ("[text|message|content|body]", "string", "phrase")),
           ('[Send|Write] {0} [a message|a text]: {1}', '[Tell|Text|Message] {0}: {1}', 'Send "{1}" to {0}[.|]',
            '[Write|Send|Say] to {0}: {1}', '[I want|I need] to [tell|text|message] {0}: {1}', '[A message|A text|Message] [for|to] {0}: {1}', '[Let|Make] {0} [hear|read] this: {1}'),
           ('Let {0} know: {1}', 'Write to {0} and say: {1}')),
    Intent("[[play|start|find|put|stream]_[song|music|artist|track]|play|music_[play|start]]", (("[artist|singer|musician]", "string", "name"),),
           ("Play [something|a song|music] by {0}[.|]", "[I want to hear|Let me hear|Put on] [music|a song] by {0}[.|]",
            "[I want|I need|Give me] [some |]{0}[ now| on the radio|][.|]", "[Can you|Could you] play {0}[ for me|]?", "[Start|Begin|Stream] [some music|music|the new song|a track] [by|of|from] {0}[.|]"),
           ("Can I hear some {0}?", "Start a song by {0}.")),
    Intent("[[convert|change|exchange|swap]_[currency|money|amount|cash]|exchange|currency|money_[change|exchange]]", (("[amount|value]", "integer", "number"), ("[from|source]", "string", "currency"), ("[to|target]", "string", "currency")),
           ("[Convert|Change|Exchange] {0} {1} [to|into] {2}[.|]", "How much is {0} {1} in {2}?", "{0} {1} in {2}?",
            "[What is|What are|How many {2} are] {0} {1}[ worth|] in {2}?", "[I have|I've got] {0} {1}[.| and] [I |]want {2}[.|]", "[Get|Give] me {2} for {0} {1}[.|]", "[Please change|Can you change|I need to exchange] {0} {1} [to|into|for] {2}[.|]"),
           ("What do I get for {0} {1} in {2}?", "I want to change {0} {1} into {2}.")),
    Intent("[[find|search|book|show|list]_[restaurant|restaurants|table|food|place]|restaurants|restaurant_[search|finder]]", (("[city|location|place]", "string", "city"), ("[food|dish|cuisine]", "string", "food")),
           ("[Find|Show me|Search for] a [restaurant|place] in {0} [with|for|that has] {1}[.|]", "Where can I eat {1} in {0}?",
            "[I want|I'd like|We want] [to eat |]{1} in {0}[.|]", "[Which|What] [restaurant|restaurants] in {0} [has|have|offers|sell] {1}?", "[I am|We are] [hungry|looking] for {1} in {0}[.|]", "[Is there|Are there] {1} [anywhere |]in {0}?"),
           ("I am in {0} and want to eat {1}.", "Which place in {0} serves {1}?")),
    Intent("[[book|find|search|get|reserve|order]_[flight|flights|ticket|plane]|flights|flight_[search|booking]]", (("[from|origin|start]", "string", "city"), ("[to|destination]", "string", "city"), ("[day|date]", "string", "day")),
           ("[Book|Find|Search|Get me] a flight from {0} to {1} on {2}[.|]", "I [want|need] to fly from {0} to {1} on {2}[.|]",
            "[Are there|Which] flights [are there |]from {0} to {1} on {2}?", "On {2} I [want|need] to [fly|go|get] from {0} to {1}[.|]", "[I need|Get] a [ticket|plane|seat] from {0} to {1} [on|for] {2}[.|]", "[Take|Fly|Bring] me from {0} to {1} on {2}[.|]"),
           ("Is there a flight from {0} to {1} on {2}?", "Get me from {0} to {1} on {2}.")),
    Intent("[[add|buy|order|put|get]_[item|product|thing|to_list]|buy|shopping_list|list_[add|item]]", (("[item|product|name]", "string", "item"), ("[quantity|amount|count|number]", "integer", "number")),
           ("[Add|Put] {1} {0} [to|on] [my|the] [shopping |]list[.|]", "[Order|Buy] {1} {0}[.|]", "I need {1} {0}[.|]",
            "[There are|We have] no {0}[ left|][,|:] [buy|order|add] {1}[.|]", "[Please|Can you|Could you] [order|buy|add|bring me] {1} {0}[?|.|]", "{1} {0}, please[.|]", "[Get|Bring] [us|me] {1} {0}[.|]"),
           ("We are out of {0}, get {1}.", "Please get me {1} {0}.")),
    Intent("[[set|change|switch|turn|make]_[light|lamp|color|lights]|light|light_[set|color]]", (("[room|place]", "string", "room"), ("[color|colour]", "string", "color")),
           ("[Make|Turn|Set] the light in the {0} [to |]{1}[.|]", "[Change|Switch] the {0} light to {1}[.|]",
            "[Give|Make] the {0} [a |]{1} light[.|]", "I [need|would like] [a |]{1} [light|lamp] in the {0}[.|]", "The [lamp|light] [of|in] the {0} [must|shall|has to] be {1}[.|]", "{0} light[:| to] {1}[.|]"),
           ("I want {1} light in the {0}.", "The {0} light should be {1}.")),
    Intent("[[call|phone|ring|dial]_[person|number|contact|friend]|phone_call|call|dial]", (("[person|name|contact]", "string", "name"),),
           ("[Call|Phone|Ring|Dial] {0}[.|]", "[I want to|Let me] [talk to|speak with|speak to] {0}[.|]", "Can you call {0}?",
            "[Please|I need you to] [call|phone|dial|ring] {0}[.|]", "[Make|Start] a [call|phone call] [to|with] {0}[.|]", "[Get|Connect] me [to |with ]{0}[.|]", "{0} on the [phone|line], please[.|]"),
           ("Get {0} on the phone.", "Give {0} a call.")),
    Intent("[[get|find|show|city|count]_[population|people|size|inhabitants]|population|population_[of|lookup]]", (("[city|place|town]", "string", "city"),),
           ("How many people live in {0}?", "[What is|What's|Get|Find] the population of {0}[?|]",
            "[How many|What number of] [inhabitants|citizens] [are there in|live in] {0}?", "How [large|populous] is {0}?", "[Tell me|I want to know] how many [people|inhabitants] [live in {0}|{0} has][.|]", "[Is|How] {0} a big [city|town]?"),
           ("How big is {0}?", "How many inhabitants does {0} have?")),
)  # fmt: skip
ROOMS = words("kitchen bathroom bedroom garden hall office garage living_room")
CURRENCIES = words("dollars euros pounds yen francs")
PHRASES = (
    "I am [late|home|here|busy|ready|on my way]", "[see you|call me|meet me] [later|tomorrow|soon|tonight|on {day}]",
    "dinner is [ready|at {n}]", "[happy birthday|thank you|good luck|well done]", "[buy|bring] {n} {item}", "I will [arrive|leave] at {n}",
)  # fmt: skip
NO_TOOL = (
    ("[Hello|Hi|Hey|Good morning][!|.|]", "Hello! How can I help you?"),
    ("[Thank you|Thanks|Thanks a lot][!|.|]", "You are welcome!"),
    (
        "[Who are you|What are you]?",
        "I am Triolet's demo model, a very small language model that runs on your own machine.",
    ),
)


VALUES: Mapping[str, Callable[[Random], str | int]] = {
    "city": city,
    "name": name,
    "number": lambda rng: rng.randint(2, 99),
    "food": lambda rng: rng.choice(FOODS[:10]),
    "day": lambda rng: rng.choice(DAYS),
    "item": lambda rng: rng.choice(ITEMS[:24]),
    "room": lambda rng: rng.choice(ROOMS),
    "color": lambda rng: rng.choice(COLORS[:8]),
    "currency": lambda rng: rng.choice(CURRENCIES),
    "phrase": lambda rng: expand(
        rng, rng.choice(PHRASES), day=rng.choice(DAYS), n=rng.randint(2, 12), item=rng.choice(ITEMS)
    ),
}


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    parameters: tuple[tuple[str, str], ...]

    def line(self) -> str:
        return self.name + " " + json.dumps(dict(self.parameters))


def _tool(rng: Random, intent: Intent) -> Tool:
    parameters: list[tuple[str, str]] = []
    for pattern, kind, _ in intent.parameters:
        parameters.append((expand(rng, pattern), kind))
    return Tool(expand(rng, intent.names), tuple(parameters))


def _made_up(rng: Random) -> Tool:
    keys = different(rng, words("size color name city count item speed level title code key mode"), rng.randint(1, 2))
    return Tool(
        word(rng) + "_" + word(rng),
        tuple((key, "integer" if key in ("size", "count", "speed", "level", "code") else "string") for key in keys),
    )


def call_text(name_: str, arguments: dict[str, str | int]) -> str:
    return "<tool_call>" + json.dumps({"name": name_, "arguments": arguments}, ensure_ascii=False) + "</tool_call>"


def _explicit(rng: Random, tool: Tool, unseen: bool) -> tuple[str, dict[str, str | int]]:
    arguments = {
        key: rng.randint(1, 99) if kind == "integer" else VALUES.get(key, name)(rng) for key, kind in tool.parameters
    }
    given = " and ".join(f"{key} {value}" for key, value in arguments.items())
    verb = rng.choice(
        ("Apply", "Invoke the tool")
        if unseen
        else ("Call", "Use", "Run", "Call the tool", "Use the tool", "Please call")
    )
    return f"{verb} {tool.name} with {given}.", arguments


def tool_call(rng: Random, unseen: bool) -> Conversation:
    intents = rng.sample(INTENTS, rng.choice((1, 2, 2, 3)))
    tools = [_tool(rng, intent) for intent in intents]
    if made_up := rng.random() < 0.15:
        tools[0] = _made_up(rng)
    chosen, intent = tools[0], intents[0]
    shown = rng.sample(tools, len(tools))
    preamble = rng.choice(SYSTEM)
    system = (preamble + "\n\n" if preamble else "") + TOOLS_HEADING + "\n" + "\n".join(tool.line() for tool in shown)
    turns: Conversation = [("system", system)]
    if rng.random() < 0.1 and not unseen:
        question, answer = rng.choice(NO_TOOL)
        return turns + asked(rng, expand(rng, question), answer)
    turns += _call(rng, unseen, chosen, None if made_up else intent)
    while not unseen and len(turns) < 7 and rng.random() < 0.5:
        again = rng.randrange(len(tools))
        turns += _call(rng, False, tools[again], None if made_up and again == 0 else intents[again])
    return turns


def _call(rng: Random, unseen: bool, tool: Tool, intent: Intent | None) -> Conversation:
    """One request and the call that answers it; a tool without an intent is named in the request."""
    if intent is None:
        question, arguments = _explicit(rng, tool, unseen)
    else:
        values = [VALUES[kind](rng) for _, _, kind in intent.parameters]
        question = expand(rng, rng.choice(intent.unseen if unseen else intent.asked), *values)
        arguments = {key: value for (key, _), value in zip(tool.parameters, values, strict=True)}
    return asked(rng, question, call_text(tool.name, arguments))


def tool_result(rng: Random, unseen: bool) -> Conversation:
    """The turn after a call: the tool's JSON result in words."""
    place = city(rng)
    kind = rng.randrange(3)
    if kind == 0:
        sky, degrees = rng.choice(("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")), rng.randint(-9, 39)
        result = {"temperature": degrees, rng.choice(("sky", "conditions", "weather")): sky}
        return _after_call(rng, INTENTS[0], [place], result, f"It is {sky} and {degrees} degrees in {place}.", unseen)
    if kind == 1:
        time = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
        return _after_call(rng, INTENTS[1], [place], {"time": time}, f"It is {time} in {place}.", unseen)
    people = rng.randint(100, 9999)
    return _after_call(rng, INTENTS[11], [place], {"population": people}, f"{people} people live in {place}.", unseen)


def _after_call(
    rng: Random, intent: Intent, values: list[str], result: Mapping[str, object], answer: str, unseen: bool
) -> Conversation:
    tool = _tool(rng, intent)
    question = expand(rng, rng.choice(intent.unseen if unseen else intent.asked), *values)
    arguments: dict[str, str | int] = {key: value for (key, _), value in zip(tool.parameters, values, strict=True)}
    return [
        ("system", TOOLS_HEADING + "\n" + tool.line()),
        *asked(rng, question, call_text(tool.name, arguments)),
        ("tool", json.dumps(result)),
        ("assistant", answer),
    ]
