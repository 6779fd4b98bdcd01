"""The chats of `./inv demo --task sft`: messages of customers, each with its order as JSON.

The model has to learn the form of the answer, and where in a message to look for what: the names, cities and
things of the held-out messages appear in no chat of the training.
"""

import json
import random
from pathlib import Path

TRAINING = 320
HELD_OUT = 16


def _words(text: str) -> list[str]:
    return text.split()


NUMBERS = dict(enumerate(_words("two three four five six seven eight nine ten eleven twelve"), start=2))
COLORS = _words("red blue green yellow white black brown grey orange purple silver golden")
# The last quarter of each list is only in held-out messages.
NAMES = _words("""
    Ada Alan Alice Amir Anna Ben Bruno Carla Carlos Chen Clara Daniel Diego Elena Emil Emma Erik Fatima Felix
    Grace Hanna Hugo Ines Ivan Jack Jana Julia Karim Lars Laura Lea Leo Lina Lucas Maria Marta Mehmet Mia
    Nadia Nora Olga Oscar Paul Petra Rosa Sara Tom Vera Omar Priya Ravi Simon Tessa Yuki Zoe Agnes Boris
    Celine Derek Frida
""")
CITIES = _words("""
    Athens Berlin Bern Boston Brussels Budapest Cairo Chicago Cologne Dallas Delhi Denver Dublin Florence
    Geneva Glasgow Hamburg Helsinki Istanbul Lagos Leeds Lima London Lyon Madrid Miami Milan Munich Nairobi
    Naples Osaka Oslo Paris Prague Riga Rome Sydney Tokyo Turin Vienna Warsaw Zurich Lisbon Porto Seattle
    Quito Bergen Toronto Valencia Rotterdam Antwerp Montreal Santiago Marseille Stockholm Edinburgh
""")
THINGS = _words("""
    lamps chairs tables mugs plates bowls spoons pillows blankets towels curtains shelves boxes baskets
    candles clocks mirrors carpets vases bottles pens notebooks folders backpacks umbrellas hats scarves
    gloves socks shirts jackets belts bikes helmets balls tents kettles knives forks pans buckets brooms
    ladders hammers drills ropes benches stools wallets ribbons kites trays jugs aprons lanterns hammocks
""")
MESSAGES = (
    "Hello, this is {name}. Please send {number} {color} {things} to {city}.",
    "{name} here, from {city}. I need {number} {color} {things}.",
    "My name is {name} and I live in {city}. Can I order {number} {color} {things}?",
    "I would like {number} {color} {things}, please. Ship them to {city}. {name}",
    "Hi! We need {number} {color} {things} for our office in {city}. {name}",
    "Could you deliver {number} {things} in {color} to {city}? Thanks, {name}",
    "We are in {city} and need {number} {things}, all of them {color}. Regards, {name}",
    "Dear team, {name} in {city} wants {number} {color} {things} by Friday.",
)

Chat = tuple[str, str]


def write(folder: Path) -> tuple[Path, list[Chat]]:
    """Write train.jsonl, and return its path and the held-out chats: the same each time."""
    chance = random.Random(42)  # noqa: S311 - messages, not secrets
    training = [_chat(chance, held_out=False) for _ in range(TRAINING)]
    held_out = [_chat(chance, held_out=True) for _ in range(HELD_OUT)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "train.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for message, answer in training:
            turns = [{"role": "user", "content": message}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": turns}) + "\n")
    return path, held_out


def _chat(chance: random.Random, held_out: bool) -> Chat:
    """A message and its answer."""

    def choose(words: list[str]) -> str:
        last = len(words) // 4
        return chance.choice(words[-last:] if held_out else words[:-last])

    name, city, things = choose(NAMES), choose(CITIES), choose(THINGS)
    count, color = chance.choice(list(NUMBERS)), chance.choice(COLORS)
    message = chance.choice(MESSAGES).format(
        name=name, city=city, things=things, number=NUMBERS[count], color=color
    )
    order = {"customer": name, "city": city, "count": count, "item": f"{color} {things}"}
    return message, json.dumps(order)
