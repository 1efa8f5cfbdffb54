"""The words of the corpus.

Most names and places are made of syllables. There are thousands, so the model must read them; memorising does not help.
"""

# ruff: noqa: E501  (a wording is one line, however long: it reads as the sentence it is)

from collections.abc import Callable, Sequence
from random import Random

from .language import words

_ONSETS = words("B Bl Br C Ch Cl Cr D Dr F Fl Fr G Gl Gr H J K Kr L M N P Ph Pl Pr Qu R S Sh Sk Sl St T Th Tr V W Y Z")
_VOWELS = words("a e i o u a e i o ai ea ee ia io oa ou")
_MIDDLES = words("b br d dr f g gr k l ll lm ln m mb n nd nn nt p r rd rl rm rn rr rt s sh ss st t th tr v x z")
_ENDS = ["", "", "n", "l", "r", "s", "th", "m", "d", "k", "x", "ck", "ne", "lla", "na", "ra", "ric", "son", "ny", "vin"]
_PLACE_ENDS = words(
    "ton burg ville ford mere stad field port haven wick dale ham gate mouth bury land more polis grad sby"
)
FIRST_NAMES = words(
    "Anna Ben Carla David Emma Felix Grace Henry Iris Jack Karen Leo Mia Noah Olga Paul Quinn Rosa Sam Tina Alice Bob Charlie "
    "Diana Ethan Fiona George Hannah Ivan Julia Kevin Laura Mark Nina Oscar Peter Rachel Simon Tom Uma Victor Wendy Xavier Yara "
    "Zoe Adam Bella Chris Daniel Eva Frank Gina Hugo Ida James Kate Lucas Maria Nora Olivia Philip Robert Sara Theo Ursula Vera "
    "William Maya Max Lily Ella Liam Ava Sofia Amir Chen Priya Ravi Yuki Omar Fatima Lena Jonas Elif Marco Luca Ines Pablo "
    "Carlos Elena John Mary Michael Linda Susan Nancy Lisa Betty Sandra Ashley Kim Emily Donna Michelle Amy Rebecca Sharon "
    "Jason Ryan Jacob Gary Nicholas Eric Jonathan Stephen Larry Justin Scott Brandon Alex Sasha Robin Ali Aisha Mei Hiro Sven"
)
REAL_CITIES = words(
    "Paris London Berlin Madrid Rome Oslo Vienna Dublin Lisbon Prague Tokyo Cairo Lima Quito Delhi Boston Chicago Toronto Sydney "
    "Milan Munich Athens Warsaw Budapest Zurich Geneva Lyon Seoul Beijing Shanghai Mumbai Nairobi Lagos Dallas Denver Seattle "
    "Miami Austin Houston Helsinki Stockholm Copenhagen Brussels Amsterdam Hamburg Barcelona Naples Istanbul Moscow Montreal"
)
COLORS = words("red blue green yellow black white purple orange brown pink gray silver golden")
ANIMALS = words(
    "fox bear owl cat dog rabbit mouse wolf turtle duck frog horse lion tiger goat sheep hedgehog squirrel crow penguin "
    "hamster parrot deer donkey badger otter beaver swan goose snail"
)
JOBS = words(
    "baker teacher doctor painter farmer pilot sailor nurse writer cook driver singer dancer lawyer judge plumber carpenter gardener "
    "engineer programmer scientist chemist librarian waiter barber tailor butcher fisherman firefighter soldier dentist vet actor "
    "musician photographer journalist clerk cashier manager secretary translator mechanic electrician builder miner potter "
    "jeweler florist designer architect student"
)
ITEMS = words(
    "apples pears books pens coins stones cups hats keys stamps shells cards plums lemons bananas oranges cherries grapes "
    "tomatoes carrots onions potatoes eggs cookies cakes candles chairs tables lamps boxes bottles bags shoes socks shirts "
    "gloves scarves buttons ribbons toys balls dolls kites bikes cars boats trains planes tickets letters maps photos paintings "
    "flowers roses trees birds fish cats dogs horses chickens marbles pencils notebooks spoons forks plates bowls towels pillows "
    "magnets ropes hammers nails bricks"
)
FOODS = words(
    "pizza pasta soup rice bread cheese salad curry sushi cake chocolate pancakes noodles beans fish stew tacos pie honey yogurt"
)
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("January February March April May June July August September October November December")


def _syllables(rng: Random, low: int, high: int) -> str:
    word = rng.choice(_ONSETS) + rng.choice(_VOWELS)
    for _ in range(rng.randint(low, high) - 1):
        word += rng.choice(_MIDDLES) + rng.choice(_VOWELS[:9])
    return word


def name(rng: Random) -> str:
    """A first name: one in four is a real one, the rest are made up."""
    return (
        rng.choice(FIRST_NAMES)
        if rng.random() < 0.25
        else _syllables(rng, 1, rng.choice((2, 2, 2, 2, 3))) + rng.choice(_ENDS)
    )


def surname(rng: Random) -> str:
    return _syllables(rng, 2, 2) + rng.choice(_ENDS)


def city(rng: Random) -> str:
    if rng.random() < 0.25:
        return rng.choice(REAL_CITIES)
    place = _syllables(rng, 1, 2) + rng.choice(_PLACE_ENDS)
    return rng.choice(("New ", "Port ", "Old ", "Saint ", "North ")) + place if rng.random() < 0.06 else place


def different(rng: Random, source: Callable[[Random], str] | Sequence[str], count: int) -> list[str]:
    """`count` distinct draws from a maker such as `name`, or from a list of words."""
    found: list[str] = []
    while len(found) < count:
        drawn = source(rng) if callable(source) else rng.choice(source)
        if drawn not in found:
            found.append(drawn)
    return found


def word(rng: Random) -> str:
    """A lower-case word: a thing, a food, a trade, an animal or a color."""
    return rng.choice(rng.choice((ITEMS, FOODS, JOBS, ANIMALS, COLORS)))
