"""Remember earlier messages: the user states a few facts, chats, then asks for one of them."""

# ruff: noqa: E501  (a wording is one line, however long: it reads as the sentence it is)

from random import Random

from .arithmetic import add, subtract
from .facts import facts
from .language import Conversation, asked, expand
from .names import ANIMALS, COLORS, FOODS, ITEMS, JOBS, MONTHS, city, name
from .paragraph import Fact, article
from .units import convert

THINGS = {
    "name": Fact(
        name,
        ("My name is {v}[.|]", "[Hi, |Hello, |]I am {v}[.|]", "[Hi, |Hello! |]I'm {v}[.|]", "[You can call|Call] me {v}[.|]", "[Hi, |]{v} here[.|]"),
        ("What is my name?", "What's my name?", "Do you [remember|know] my name?", "Who am I?", "How am I called?", "Tell me my name.",
         "[Can you|Could you] [tell me|say|remember] my name[ again|]?", "[What|Which] name [do I have|is mine]?", "What [do people|do you] call me?", "[I forgot my name|Say my name][.|]"),
        ("Can you remember what I am called?", "Which name did I give you?"),
        "Your name is {v}.", "You have not told me your name.",
        ("Nice to meet you, {v}!", "Hello, {v}!"),
    ),
    "color": Fact(
        lambda r: r.choice(COLORS),
        ("My favorite color is {v}[.|]", "I like [the color |]{v} best[.|]", "I love the color {v}[.|]"),
        ("[What is|What's] my favorite color?", "Which color do I like[ best|]?", "Do you [remember|know] my favorite color?",
         "[What|Which] color do I [love|prefer]?", "[Can you|Could you] [tell me|say|remember] my favorite color[ again|]?", "[What|Which] [is the color|color is it] that I like?"),
        ("Which color did I say I like?", "Tell me my favorite color."),
        "Your favorite color is {v}.", "You have not told me your favorite color.",
        ("I will remember that you like {v}.",),
    ),
    "city": Fact(
        city,
        ("I live in {v}[.|]", "I am from {v}[.|]", "My home is in {v}[.|]", "I come from {v}[.|]", "I just moved to {v}[.|]"),
        ("Where do I live?", "[Which|What] city do I live in?", "Where am I from?", "Do you [remember|know] where I live?",
         "[Can you|Could you] [tell me|say|remember] where I live[ again|]?", "[In which|In what] [city|town] do I live?", "[Where|In which city] is my home?", "[Which|What] place [am I from|do I live in|is my home]?"),
        ("In which place did I say I live?", "Tell me where I live."),
        "You live in {v}.", "You have not told me where you live.",
        ("I hear that {v} is nice.", "{v} is a good place to live."),
    ),
    "job": Fact(
        lambda r: article(r.choice(JOBS)),
        ("I am {v}[.|]", "I work as {v}[.|]", "My job: I am {v}[.|]"),
        ("What is my job?", "What do I do[ for a living|]?", "What do I work as?", "Do you [remember|know] my job?",
         "[Can you|Could you] [tell me|say|remember] my job[ again|]?", "[What|Which] job do I [do|have]?", "[What|Which] [work|kind of job] do I [do|have]?", "[How|With what] do I earn my money?"),
        ("Which job did I say I have?", "Tell me what my job is."),
        "You work as {v}.", "You have not told me your job.",
        ("Being {v} is a good job.",),
    ),
    "pet": Fact(
        lambda r: article(r.choice(ANIMALS)),
        ("I have {v} at home[.|]", "My pet is {v}[.|]", "I own {v}[.|]"),
        ("What [pet|animal] do I have?", "What is my pet?", "Do you [remember|know] my pet?",
         "[Can you|Could you] [tell me|say|remember] my pet[ again|]?", "[Which|What kind of] [pet|animal] do I [own|have at home|keep]?", "[Which|What] animal [is my pet|is mine|lives with me]?"),
        ("Which animal did I say I have?", "Tell me what pet I have."),
        "You have {v}.", "You have not told me about a pet.",
        ("It must be fun to have {v}.",),
    ),
    "friend": Fact(
        name,
        ("My [best |]friend is [called |]{v}[.|]", "I have a friend called {v}[.|]", "{v} is my [best |]friend[.|]"),
        ("Who is my [best |]friend?", "What is my friend called?", "What is the name of my friend?",
         "[Can you|Could you] [tell me|say|remember] the name of my friend[ again|]?", "Do you [know|remember] [my friend|my friend's name|the name of my friend]?", "What [do I call|is] my friend['s name|]?"),
        ("Do you remember who my friend is?", "Tell me the name of my friend."),
        "Your friend is {v}.", "You have not told me about a friend.",
        ("It is good to have a friend like {v}.",),
    ),
    "age": Fact(
        lambda r: str(r.randint(5, 99)),
        ("I am {v} years old[.|]", "I'm {v} years old[.|]", "My age is {v}[.|]"),
        ("How old am I?", "What is my age?", "Do you [remember|know] how old I am?", "Do you know my age?",
         "[Can you|Could you] [tell me|say|remember] my age[ again|]?", "[Which|What] age [am I|do I have]?", "How many years old am I?", "[Say|I forgot] [my age|how old I am][.|]"),
        ("Which age did I tell you?", "Tell me how old I am."),
        "You are {v} years old.", "You have not told me your age.",
        ("{v} is a good age.",),
    ),
    "food": Fact(
        lambda r: r.choice(FOODS),
        ("My favorite food is {v}[.|]", "I love eating {v}[.|]", "I like to eat {v}[.|]"),
        ("What is my favorite food?", "What do I like to eat?", "Which food do I like?", "Do you [remember|know] my favorite food?",
         "[Can you|Could you] [tell me|say|remember] my favorite food[ again|]?", "[What|Which] food do I [love|prefer|like best]?", "What do I [eat|love to eat|eat most]?"),
        ("Which food did I say I like?", "Tell me my favorite food."),
        "Your favorite food is {v}.", "You have not told me your favorite food.",
        ("I will remember that you like {v}.",),
    ),
    "birthday": Fact(
        lambda r: r.choice(MONTHS),
        ("My birthday is in {v}[.|]", "I was born in {v}[.|]"),
        ("When is my birthday?", "In which month is my birthday?", "When was I born?",
         "[Can you|Could you] [tell me|say|remember] [my birthday|when I was born][ again|]?", "[Which|What] month [was I born in|is my birthday in]?", "Do you [know|remember] [my birthday|when my birthday is]?"),
        ("Do you remember the month of my birthday?", "Tell me when my birthday is."),
        "Your birthday is in {v}.", "You have not told me your birthday.",
        ("{v} is a good month for a birthday.",),
    ),
    "items": Fact(
        lambda r: f"{r.randint(2, 99)} {r.choice(ITEMS)}",
        ("I have {v}[.|]", "I bought {v}[.|]", "There are {v} on my table[.|]"),
        ("How many {i} do I have?", "Do you remember how many {i} I have?",
         "[Can you|Could you] [tell me|say|remember] how many {i} I have[ again|]?", "[How many|What number of] {i} [do I own|are mine|did I get]?", "Do you know how many {i} I [have|own|bought]?"),
        ("What number of {i} did I say I have?", "Tell me how many {i} I have."),
        "You have {v}.", "You have not told me that.",
        ("So you have {v}.",),
    ),
}  # fmt: skip


def memory(rng: Random, unseen: bool) -> Conversation:
    kinds = rng.sample(list(THINGS), rng.choice((1, 1, 2, 2, 3, 3, 4)))
    values = {kind: THINGS[kind].value(rng) for kind in kinds}
    turns: Conversation = []
    pending = list(kinds)
    while pending:
        if turns and rng.random() < 0.2:
            turns += rng.choice((add, subtract, convert, facts))(rng, False)
            continue
        together = [pending.pop()]
        if pending and rng.random() < 0.15:
            together.append(pending.pop())
        said = " ".join(
            expand(rng, rng.choice(THINGS[kind].told), v=values[kind]).rstrip(".") + "." for kind in together
        )
        noted = expand(rng, rng.choice(THINGS[together[-1]].noted), v=values[together[-1]])
        turns += asked(rng, said, noted)
    if rng.random() < 0.12:
        thing = THINGS[rng.choice([kind for kind in THINGS if kind not in kinds])]
        question = expand(rng, rng.choice(thing.asked), i=rng.choice(ITEMS))
        return turns + asked(rng, question, thing.missing, True)
    for kind in rng.sample(kinds, 1 if unseen else rng.randint(1, len(kinds))):
        thing, value = THINGS[kind], values[kind]
        pattern = rng.choice(thing.unseen if unseen else thing.asked)
        question = expand(rng, pattern, i=value.split()[-1])
        turns += asked(rng, question, thing.answer.format(v=value), True)
    return turns
