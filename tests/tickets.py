"""A synthetic table of support tickets: id, customer, date, city, age and free text. Some labels are wrong."""

import csv
import random
from datetime import date, timedelta
from string import ascii_lowercase

KINDS = ("billing", "delivery", "quality")


def write_tickets(path, rows, *, seed, wrong=0.2, delimiter=",", decimal=".", telling=4, vocabulary=8):
    """Write a CSV file. Only the comment depends on the class. The age is missing in one row of ten.

    Each comment has ``telling`` words that identify its class, drawn from ``vocabulary`` words per class.
    """
    draw = random.Random(seed)
    words = {kind: [f"{kind}{letter}" for letter in ascii_lowercase[:vocabulary]] for kind in KINDS}
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["ticket", "customer", "opened", "city", "age", "comment", "kind", "true"])
        for number in range(rows):
            true = draw.choice(KINDS)
            given = draw.choice([kind for kind in KINDS if kind != true]) if draw.random() < wrong else true
            text = [f"word{draw.randrange(60)}" for _ in range(draw.randint(5, 12))] + draw.choices(
                words[true], k=telling
            )
            draw.shuffle(text)
            opened = date(2023, 1, 1) + timedelta(days=draw.randrange(900))
            age = "" if draw.random() < 0.1 else f"{draw.gauss(40, 12):.1f}".replace(".", decimal)
            customer, city = f"cust-{draw.getrandbits(40):010x}", draw.choice(["Bern", "Oslo", "Riga", "Rome"])
            writer.writerow([f"T{number}", customer, opened, city, age, " ".join(text), given, true])
