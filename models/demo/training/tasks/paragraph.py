"""Answer from a given paragraph: facts about two or three people or one place, a question, and sometimes no answer in the text."""

# ruff: noqa: E501  (a wording is one line, however long: it reads as the sentence it is)

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from .language import Conversation, asked, expand
from .names import ANIMALS, COLORS, DAYS, FOODS, ITEMS, JOBS, MONTHS, city, different, name


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact's values, how it stands in the text, how it is asked (trained, unseen) and answered. `{n}` is who, `{v}` what."""

    value: Callable[[Random], str]
    told: Sequence[str]
    asked: Sequence[str]
    unseen: Sequence[str]
    answer: str
    missing: str = ""  # the answer if the fact was not stated
    noted: Sequence[str] = ()  # replies to the statement of the fact


def article(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


FACTS = {
    "city": Fact(
        city,
        ("{n} lives in {v}.", "{n} has lived in {v} for years.", "The home of {n} is in {v}."),
        ("Where does {n} live?", "[In which|In what|What] city does {n} live[ in|]?", "[Where is|Tell me] the home of {n}?",
         "[Which|What] [city|place|town] is the home of {n}?", "Where [is {n} living|is {n} at home|has {n} lived]?", "[Can you|Could you] tell me where {n} lives?"),
        ("Which city is {n} living in?", "In which place does {n} live?"),
        "{n} lives in {v}.",
    ),
    "job": Fact(
        lambda rng: article(rng.choice(JOBS)),
        ("{n} works as {v}.", "{n} is {v}.", "{n} earns a living as {v}."),
        ("What is the job of {n}?", "What does {n} do[ for work| for a living|]?", "[What|Which] job does {n} have?", "What is {n}'s job?",
         "[How|With what] does {n} earn [a living|money]?", "What [kind of |]work does {n} do?", "[Can you|Could you] tell me the job of {n}?", "[As what|Tell me as what] does {n} work?"),
        ("What does {n} work as?", "What kind of job does {n} have?"),
        "{n} works as {v}.",
    ),
    "house": Fact(
        lambda rng: rng.choice(COLORS),
        ("The house of {n} is {v}.", "{n} has a {v} house.", "{n} lives in a {v} house."),
        ("What color is the house of {n}?", "[What|Which] color is {n}'s house?", "What is the color of {n}'s house?",
         "[What|Which] color [is|has] the [house|home] of {n}?", "In [what|which] color is {n}'s house?", "[Can you|Could you] tell me the color of {n}'s house?"),
        ("What color does {n}'s house have?", "Which color does the house of {n} have?"),
        "The house of {n} is {v}.",
    ),
    "pet": Fact(
        lambda rng: article(rng.choice(ANIMALS)),
        ("{n} has {v}.", "{n} owns {v}.", "{n} takes care of {v}."),
        ("What [animal|pet] does {n} [have|own]?", "What is {n}'s pet?", "Which [animal|pet] does {n} have?",
         "[What|Which] kind of [animal|pet] does {n} [own|keep]?", "[What|Which] [animal|pet] [belongs to|is kept by] {n}?", "[Can you|Could you] tell me the pet of {n}?"),
        ("What kind of pet does {n} have?", "Which animal lives with {n}?"),
        "{n} has {v}.",
    ),
    "food": Fact(
        lambda rng: rng.choice(FOODS),
        ("{n} likes {v} most.", "The favorite food of {n} is {v}.", "{n} loves {v}.", "{n} eats {v} every day."),
        ("What is the favorite food of {n}?", "What does {n} like to eat?", "What is {n}'s favorite food?",
         "[What|Which] food [is|does] {n} [like|eat|prefer|enjoy]?", "What does {n} [eat|love|like] [most|best|every day]?", "[Can you|Could you] tell me the favorite food of {n}?"),
        ("Which food does {n} like best?", "What food does {n} love?"),
        "{n} likes {v}.",
    ),
    "age": Fact(
        lambda rng: str(rng.randint(4, 99)),
        ("{n} is {v} years old.", "{n} turned {v} this year."),
        ("How old is {n}?", "What is the age of {n}?", "What is {n}'s age?", "[What|Which] age is {n}?",
         "[What|Which] age does {n} have?", "How many years does {n} have?", "[Can you|Could you] tell me [the age of {n}|{n}'s age]?"),
        ("How many years old is {n}?", "Tell me how old {n} is."),
        "{n} is {v} years old.",
    ),
    "birth": Fact(
        lambda rng: rng.choice(MONTHS),
        ("{n} was born in {v}.", "The birthday of {n} is in {v}."),
        ("[When|In which month|In what month] was {n} born?", "When is the birthday of {n}?", "When is {n}'s birthday?",
         "[In what|In which|What|Which] month is the birthday of {n}?", "[In what|In which] month does {n} have a birthday?", "[Can you|Could you] tell me [when {n} was born|the birthday of {n}]?"),
        ("Which month was {n} born in?", "What month is {n}'s birthday in?"),
        "{n} was born in {v}.",
    ),
    "trip": Fact(
        city,
        ("{n} will travel to {v}.", "Next week {n} goes to {v}.", "{n} has a ticket to {v}."),
        ("Where [will {n} travel|does {n} go|is {n} going]?", "[Where|To which city] will {n} go?",
         "Where [does|will] {n} [travel|go] to?", "[What|Which] [city|place] [does {n} go to|will {n} travel to|has {n} a ticket to]?", "[Can you|Could you] tell me where {n} will travel?"),
        ("What is the destination of {n}?", "Where is {n} travelling to?"),
        "{n} will travel to {v}.",
    ),
    "day": Fact(
        lambda rng: rng.choice(DAYS),
        ("{n} comes home on {v}.", "{n} will be back on {v}."),
        ("When [will {n} be back|does {n} come home|is {n} back]?", "On which day does {n} come home?",
         "[On what|On which] day [is|will] {n} [be back|back|return]?", "[What|Which] day does {n} come [home|back]?", "[Can you|Could you] tell me when {n} comes home?"),
        ("On what day will {n} come home?", "Which day is {n} back?"),
        "{n} comes home on {v}.",
    ),
    "friend": Fact(
        name,
        ("{n} is a friend of {v}.", "The best friend of {n} is {v}.", "{n} often plays with {v}."),
        ("Who is the [best |]friend of {n}?", "Who is {n}'s [best |]friend?", "[What is|Tell me] the name of {n}'s friend?",
         "[What|Which] [person|friend] [is the friend of {n}|does {n} like]?", "[Who|Which person] [often plays with|is liked by] {n}?", "[Can you|Could you] tell me the friend of {n}?"),
        ("Which friend does {n} have?", "Who is friends with {n}?"),
        "The friend of {n} is {v}.",
    ),
}  # fmt: skip
FRAMES = (
    "[Read this|Read the text|Here is a text|Read this text|Text]: {p} {q}",
    "[Read this|Read the text|Here is a text|Text|Context]:\n{p}\n\n[Question: |]{q}",
    "{p} {q}",
    "{p}\n\n{q}",
    "{p}\n[Question: |Q: ]{q}",
    "{q}\n\n{p}",
    "[Look at this|This is a text|Take this|I read this|Somebody wrote|This is what I know]: {p} [My question: |Tell me: |Now: |Then answer: |]{q}",
    "[From the following text|With this text|Using the following paragraph], [answer|answer me|tell me][.|:] {p}[ |\n]{q}",
    "[I have a question|Answer me|Tell me]: {q} [The text: |Text: |Here is the text: |]{p}",
    "[Look at this|This is what I know|Paragraph|Facts][.|:] {p}[ |\n][Answer this|Now tell me|So]: {q}",
    "[Answer the question from the text|Use the text to answer|Answer from this paragraph]. [Text: |]{p} [Question: |]{q}",
)
UNSEEN_FRAMES = (
    "Take this paragraph: {p} Now answer: {q}",
    "Here is what I know. {p} {q}",
    "Given the following text, answer. {p}\n{q}",
)
FILLER = (
    "It was a warm day.", "The sun was shining.", "It rained all night.", "Everybody was happy.", "The market was full of people.",
    "The streets were quiet.", "It was early in the morning.", "Nobody was at home.", "The bus was late.",
)  # fmt: skip
UNKNOWN = "The text does not say that."


def paragraph(rng: Random, unseen: bool) -> Conversation:
    people = different(rng, name, rng.choice((1, 2, 2, 2, 3)))
    told: list[tuple[str, str, str]] = []  # (fact, who, value)
    for person in people:
        told += [(kind, person, FACTS[kind].value(rng)) for kind in rng.sample(list(FACTS), rng.randint(1, 3))]
    items = rng.choice(ITEMS)
    counts = [(person, rng.randint(2, 99)) for person in people if rng.random() < 0.3]
    sentences = [expand(rng, rng.choice(FACTS[kind].told), n=who, v=value) for kind, who, value in told]
    sentences += [f"{who} has {n} {items}." for who, n in counts]
    if rng.random() < 0.3:
        sentences.append(rng.choice(FILLER))
    if rng.random() < 0.8:
        rng.shuffle(sentences)
    question, answer = _question(rng, unseen, people, told, counts, items)
    text = expand(rng, rng.choice(UNSEEN_FRAMES if unseen else FRAMES), p=" ".join(sentences), q=question)
    turns = asked(rng, text, answer)
    # More questions on the same text: it teaches more, and people do ask follow-up questions.
    while not unseen and len(turns) < 8 and rng.random() < 0.55:
        question, answer = _question(rng, False, people, told, counts, items)
        if all(answer != text for _, text in turns):
            more = "And " + question[0].lower() + question[1:] if rng.random() < 0.2 else question
            turns += asked(rng, more, answer)
    return turns


def _question(
    rng: Random,
    unseen: bool,
    people: list[str],
    told: list[tuple[str, str, str]],
    counts: list[tuple[str, int]],
    items: str,
) -> tuple[str, str]:
    if counts and rng.random() < 0.3:
        who, n = rng.choice(counts)
        return f"How many {items} does {who} have?", f"{who} has {n} {items}."
    if rng.random() < 0.1:
        who = rng.choice(people)
        kind = rng.choice([k for k in FACTS if all((k, who) != (f, w) for f, w, _ in told)])
        return expand(rng, rng.choice(FACTS[kind].asked), n=who), UNKNOWN
    kind, who, value = rng.choice(told)
    fact = FACTS[kind]
    # A held-out instance has an unseen frame, and usually an unseen question.
    question = expand(rng, rng.choice(fact.unseen if unseen and rng.random() < 0.6 else fact.asked), n=who)
    return question, fact.answer.format(n=who, v=value)
