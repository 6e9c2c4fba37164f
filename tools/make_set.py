#!/usr/bin/env python3
"""Plants facts in text and writes a retrieval set: JSON lines of documents with questions. Needs nothing but Python, and for
--verbatim the tokenizers package (pip install tokenizers).

Tasks, in the words the shipped models were trained on:
  number  "The secret code of Vile is 48213."          "What is the secret code of Vile?"
  word    "The favorite color of Olga is harbor."      "What is the favorite color of Olga?"
  kv      "Key 62243: 93328."                          "What is the value of key 62243?"
  hop     "Let Sibi0 equal Jonas5." "Let Jonas5 be 7540."  "What is Sibi0?"
  absent  a record the text does not hold              "There is no such record."

With --verbatim N each document also has N questions that ask for its words, which tell budgets apart where facts no longer do:
  verbatim  20 tokens of it                            "Continue: ions of the code are"
            the next 24 are the answer                 " tested by the same suite of"

The text around the facts is the generated log of a weather station (--station), or any files (--text), cut to length.
A question's `depth` is the share of the document before its fact (hop: before the first of the two; absent: null).

  tools/make_set.py --station --tokens 2048,8192 --documents 2 --questions 10 --seed 1 --out set.jsonl
  tools/make_set.py --text README.md docs/*.md --tokens 4096 --out docs.jsonl
  tools/make_set.py --text docs/*.md --tokens 8192 --questions 0 --verbatim 25 --tokenizer models/tiny-gqa/tokenizer.json --out v.jsonl
  tools/make_set.py --station --tokens 32768 --documents 1 --questions 5 --plain station.txt --out demo.jsonl
"""
import argparse
import json
import pathlib
import random
import re

NUMBERS = ["access code", "account number", "badge number", "invoice number", "locker number", "passcode",
           "phone extension", "pin", "room number", "secret code", "serial number", "ticket number"]
WORDS = ["call sign", "favorite color", "favorite fruit", "guild", "hidden word", "home city", "password", "pet"]
THINGS = ["amber", "arrow", "autumn", "badger", "bamboo", "basil", "bronze", "cactus", "cherry", "cobalt", "comet", "copper",
          "coral", "crane", "crystal", "daisy", "diamond", "dolphin", "dragon", "eagle", "ember", "fern", "fig", "forest",
          "ginger", "hammer", "harbor", "hazel", "indigo", "iris", "iron", "island", "ivory", "jade", "jasmine", "juniper",
          "kite", "lantern", "lemon", "lily", "lotus", "maple", "marble", "melon", "moon", "moss", "nectar", "olive", "opal",
          "orchid", "otter", "owl", "paper", "pepper", "pine"]
NAMES = ["Amara", "Boaz", "Cairo", "Chloe", "Dakar", "Denver", "Diego", "Ivana", "Jamal", "Jonas", "Katya", "Kyoto",
         "Leila", "Madrid", "Nina", "Olga", "Osaka", "Pablo", "Perth", "Priya", "Silas", "Tara", "Turin", "Ursula",
         "Yara", "Boston", "Hanoi", "Lima", "Milan", "Omar", "Rosa", "Stefan"]
TASKS = ["number", "word", "kv", "hop", "absent"]
WEIGHTS = [7, 4, 7, 4, 3]
ABSENT = "There is no such record."
VERBATIM_ASKED, VERBATIM_ANSWERED = 20, 24  # tokens


class Facts:
    """Draws facts that never collide within one document."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.used = set()

    def fresh(self, make):
        while True:
            value = make()
            if value not in self.used:
                self.used.add(value)
                return value

    def name(self):
        def make():
            if self.rng.random() < 0.4:
                return self.rng.choice(NAMES)
            syllables = [self.rng.choice("bdjklmnprstvz") + self.rng.choice("aeiou") for _ in range(self.rng.randint(2, 3))]
            return "".join(syllables).capitalize()
        return self.fresh(make)

    def variable(self):
        return self.name() + str(self.rng.randint(0, 9))

    def digits(self, count):
        return "".join(self.rng.choice("0123456789") for _ in range(count))

    def draw(self, task):
        """(lines to plant, question, answer)"""
        if task == "number":
            what, who, value = self.rng.choice(NUMBERS), self.name(), self.digits(5)
            line = f"The {what} of {who} is {value}."
            return [line], f"What is the {what} of {who}?", line
        if task == "word":
            what, who, value = self.rng.choice(WORDS), self.name(), self.rng.choice(THINGS)
            line = f"The {what} of {who} is {value}."
            return [line], f"What is the {what} of {who}?", line
        if task == "kv":
            key = self.fresh(lambda: self.digits(5))
            line = f"Key {key}: {self.digits(5)}."
            return [line], f"What is the value of key {key}?", line
        if task == "hop":
            a, b, value = self.variable(), self.variable(), self.digits(4)
            return [f"Let {a} equal {b}.", f"Let {b} be {value}."], f"What is {a}?", f"{a} equals {b}, and {b} is {value}."
        what = self.rng.choice(NUMBERS + WORDS)
        return [], f"What is the {what} of {self.name()}?", ABSENT


def station_log(rng: random.Random, chars: int) -> list[str]:
    """Lines of a log that a small weather station might keep."""
    winds = ["calm", "light air from the west", "a fresh breeze from the north", "gusts from the south east", "a steady westerly"]
    skies = ["clear", "high thin cloud", "broken cloud", "overcast", "fog below the ridge", "showers to the north"]
    jobs = ["cleaned the rain gauge", "replaced the paper of the barograph", "oiled the anemometer", "checked the batteries",
            "swept the snow from the solar panels", "repaired the fence by the lower path", "read the soil thermometers",
            "tested the radio", "counted the stores", "cleared ice from the mast"]
    guests = ["A party of walkers passed.", "The supply truck came up before noon.", "Two geologists asked for water.",
              "Nobody came.", "A fox was seen by the shed.", "The ranger left a map.", "Swifts nested under the roof."]
    remarks = ["The pressure has fallen since the morning.", "The instruments agree.", "The lower sensor still drifts and should be replaced.",
               "The stream is higher than last week.", "Visibility was poor until the afternoon.", "The night was quiet.",
               "The record of the previous day was copied to the book.", "The generator ran for an hour."]
    lines, size, day = ["Station log.", "Entries are made at dawn, at noon and at dusk."], 0, 0
    while size < chars:
        day += 1
        block = [f"Day {day}."]
        for hour in ("Dawn", "Noon", "Dusk"):
            block.append(f"{hour}: {rng.choice(skies)}, {rng.choice(winds)}, {rng.randint(-9, 24)} degrees.")
            if rng.random() < 0.8:
                block.append(f"We {rng.choice(jobs)} and {rng.choice(jobs)}.")
            if rng.random() < 0.7:
                block.append(rng.choice(remarks))
        block.append(rng.choice(guests))
        lines += block
        size += sum(len(line) + 1 for line in block)
    return lines


def text_lines(paths: list[pathlib.Path], rng: random.Random, chars: int) -> list[str]:
    """The files' lines from a random start, repeated from the top as often as it takes."""
    lines = [line.rstrip() for p in paths for line in p.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise SystemExit("make_set: the files of --text hold no text")
    start = rng.randrange(len(lines))
    out, size, i = [], 0, start
    while size < chars:
        out.append(lines[i % len(lines)])
        size += len(out[-1]) + 1
        i += 1
    return out


def estimated_tokens(text: str) -> int:
    """Tokens by the shipped tokenizer, roughly: words in pieces of about three letters, digits and marks one by one."""
    words = re.findall(r"[A-Za-z]+", text)
    marks = re.findall(r"[^A-Za-z\s]", text)
    return sum(1 + (len(w) - 1) // 3 for w in words) + len(marks) + text.count("\n")


def make_document(lines: list[str], tokens: int, questions: int, rng: random.Random, number: int):
    facts = Facts(rng)
    drawn = [(task, *facts.draw(task)) for task in rng.choices(TASKS, WEIGHTS, k=questions)]
    planted = [line for _, fact_lines, _, _ in drawn for line in fact_lines]
    budget = tokens - estimated_tokens("\n".join(planted))
    kept, size = [], 0
    for line in lines:
        cost = estimated_tokens(line + "\n")
        if size + cost > budget:
            break
        kept.append(line)
        size += cost
    if not kept:
        raise SystemExit(f"make_set: {tokens} tokens have no room for {questions} facts and a line beside them")
    places = sorted(rng.randrange(1, len(kept) + 1) for _ in planted)
    order = list(range(len(planted)))
    rng.shuffle(order)
    for offset, (place, which) in enumerate(zip(places, order)):
        kept.insert(place + offset, planted[which])
    document = "\n".join(kept)
    out = []
    for i, (task, fact_lines, question, answer) in enumerate(drawn):
        depth = round(document.index(fact_lines[0]) / len(document), 3) if fact_lines else None
        out.append({"id": f"{tokens}-{number}-{i}-{task}", "task": task, "depth": depth, "question": question, "answer": answer})
    return {"id": f"{tokens}-{number}", "approx_tokens": tokens, "document": document, "questions": out}


def tokenizer_of(path: pathlib.Path):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise SystemExit("make_set: --verbatim needs the tokenizers package: pip install tokenizers")
    return Tokenizer.from_file(str(path))


def add_verbatim(d, tokenizer, count: int, rng: random.Random):
    """Questions whose answer is what follows in the document, and what precedes it occurs once."""
    text = d["document"]
    ends = [end for _, end in tokenizer.encode(text, add_special_tokens=False).offsets]
    if len(ends) < VERBATIM_ASKED + VERBATIM_ANSWERED:
        raise SystemExit(f"make_set: --verbatim: a document of {len(ends)} tokens is too short to be continued")
    starts = range(len(ends) - VERBATIM_ASKED - VERBATIM_ANSWERED)
    made = 0
    for start in rng.sample(starts, len(starts)):
        if made == count:
            return
        begin, middle, end = ends[start], ends[start + VERBATIM_ASKED], ends[start + VERBATIM_ASKED + VERBATIM_ANSWERED]
        asked, answer = text[begin:middle], text[middle:end]
        if text.count(asked) != 1 or not answer.strip():
            continue
        d["questions"].append({"id": f"{d['id']}-v{made}", "task": "verbatim", "depth": round(begin / len(text), 3),
                               "question": "Continue: " + asked, "answer": answer})
        made += 1
    if made < count:
        raise SystemExit(f"make_set: --verbatim {count}: {d['id']} has only {made} places that occur once")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--station", action="store_true", help="plant the facts in a generated station log")
    p.add_argument("--text", nargs="+", type=pathlib.Path, default=[], help="plant them in these files")
    p.add_argument("--tokens", default="2048", help="lengths, comma-separated")
    p.add_argument("--documents", type=int, default=2, help="documents of each length")
    p.add_argument("--questions", type=int, default=10, help="questions of each document")
    p.add_argument("--verbatim", type=int, default=0, help="verbatim questions of each document, beside the others")
    p.add_argument("--tokenizer", type=pathlib.Path, help="tokenizer.json of the model that is asked, for --verbatim")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--plain", type=pathlib.Path, help="write the first document as plain text here")
    p.add_argument("--out", type=pathlib.Path, required=True)
    a = p.parse_args()
    if a.station == bool(a.text):
        p.error("give --station or --text, and not both")
    if a.verbatim > 0 and not (a.tokenizer and a.tokenizer.is_file()):
        p.error(f"--tokenizer {a.tokenizer}: there is no such file" if a.tokenizer else "--verbatim needs --tokenizer FILE")
    tokenizer = tokenizer_of(a.tokenizer) if a.verbatim > 0 else None
    for path in a.text:
        if not path.is_file():
            p.error(f"--text {path}: there is no such file")
    documents = []
    for tokens in (int(t) for t in a.tokens.split(",")):
        for number in range(a.documents):
            rng = random.Random(f"{a.seed}/{tokens}/{number}")
            chars = tokens * 8
            lines = station_log(rng, chars) if a.station else text_lines(a.text, rng, chars)
            documents.append(make_document(lines, tokens, a.questions, rng, number))
            if tokenizer:
                add_verbatim(documents[-1], tokenizer, a.verbatim, rng)
    a.out.parent.mkdir(parents=True, exist_ok=True)
    with a.out.open("w", encoding="utf-8") as out:
        for d in documents:
            out.write(json.dumps(d, ensure_ascii=False) + "\n")
    if a.plain:
        a.plain.write_text(documents[0]["document"], encoding="utf-8")
    print(f"{a.out}: {len(documents)} documents, {sum(len(d['questions']) for d in documents)} questions")


if __name__ == "__main__":
    main()
