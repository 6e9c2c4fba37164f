#!/usr/bin/env python3
"""Makes tests/data/tokenizer: small tokenizers of the kinds models ship, strings, and what `tokenizers` makes of them.

Needs the PyPI package `tokenizers` (0.23). Everything is trained and written from the text in this file, with fixed
seeds: running it twice writes the same files, but a new version of the package may train other merges.

  python3 tools/make_tokenizer_goldens.py            writes the goldens
  python3 tools/make_tokenizer_goldens.py --kinds llama2,mistral
      writes these alone, for the strings that are there
  python3 tools/make_tokenizer_goldens.py --differences
      asks the package about every code point and prints what its regexes and normalizers know of it: the source of
      src/text/tokenizer/unicode_data.cpp (compare with the same question put to PCRE2 and utf8proc)

strings.jsonl        one JSON string a line: the strings, shared by all tokenizers
<kind>/tokenizer.json
<kind>.golden.json   {"tokenizer", "block", "plain", "special_as_text": [64-bit FNV-1a of the ids of each block of
                     strings], "full": [whole answers for some strings], "decode": [random ids and their text]}
"""

import argparse
import json
import pathlib
import random
import re

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "data" / "tokenizer"
STRINGS = 21000
BLOCK = 16
FULL = 120

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

SENTENCES = [
    "The lighthouse keeper wrote down the wind and the water at six o'clock, and again when the lamp was lit.",
    "It's what we'll say when they've gone: I'm here, you're there, and he'd rather not.",
    "Надвечір туман сховав причал, і човни стояли тихо.",
    "Утром сторож записал давление, ветер и волну.",
    "Το πρωί ο φύλακας έγραψε τον άνεμο και το κύμα.",
    "في الصباح كتب الحارس حالة الريح والموج.",
    "בבוקר רשם השומר את הרוח ואת הגלים.",
    "सुबह पहरेदार ने हवा और लहरें लिखीं।",
    "ตอนเช้าผู้เฝ้าประภาคารจดลมและคลื่น",
    "早上守塔人记下了风和浪，然后点亮了灯。",
    "朝、灯台守は風と波を書きとめ、ランプをともした。",
    "아침에 등대지기는 바람과 물결을 적었다.",
    "Der Wärter schrieb früh am Morgen größere Wellen auf; çà et là, l'été s'achève, señor.",
    "Sáng sớm người gác đèn ghi lại gió và sóng.",
    "for (int i = 0; i < n; ++i) {\n\tsum += values[i] * 0x1F;\n}\n",
    "def read(path: str) -> bytes:\n    with open(path, 'rb') as f:\n        return f.read()\n",
    "SELECT name, height FROM towers WHERE built < 1850 AND lit = TRUE;\n",
    "<div class=\"tower\"><a href=\"https://example.org/?q=1&r=2\">x</a></div>\n",
    "3.14159 2,718 1000000 2024-02-29T23:59:60Z +49 (0)30 12 34 56",
    "🙂 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 1️⃣ ✈️",
]

SCRIPTS = [
    (0x41, 0x5A), (0x61, 0x7A), (0x61, 0x7A), (0x61, 0x7A), (0xC0, 0x24F), (0x250, 0x2AF), (0x300, 0x36F),
    (0x370, 0x3FF), (0x400, 0x4FF), (0x530, 0x58F), (0x590, 0x5FF), (0x600, 0x6FF), (0x700, 0x74F), (0x780, 0x7BF),
    (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F), (0xE80, 0xEFF), (0xF00, 0xFFF),
    (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x13A0, 0x13FF), (0x1780, 0x17FF),
    (0x1800, 0x18AF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x209F), (0x20A0, 0x20CF),
    (0x20D0, 0x20FF), (0x2100, 0x214F), (0x2150, 0x218F), (0x2190, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x27BF),
    (0x2E80, 0x2FFF), (0x3000, 0x303F), (0x3040, 0x30FF), (0x3130, 0x318F), (0x4E00, 0x9FFF), (0x4E00, 0x9FFF),
    (0xA000, 0xA48F), (0xA640, 0xA69F), (0xA720, 0xA7FF), (0xAC00, 0xD7A3), (0xD7B0, 0xD7FF), (0xE000, 0xF8FF),
    (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFE4F), (0xFE70, 0xFFFF), (0x10000, 0x100FF), (0x10300, 0x1034F),
    (0x10D40, 0x10D8F), (0x10EC0, 0x10EFF), (0x11100, 0x1114F), (0x11380, 0x113FF), (0x11930, 0x11943),
    (0x11F00, 0x11F5F), (0x12000, 0x1203F), (0x13000, 0x1345F), (0x16100, 0x1613F), (0x16FE0, 0x16FFF),
    (0x1CC00, 0x1CEBF), (0x1D100, 0x1D1FF), (0x1D400, 0x1D7FF), (0x1E030, 0x1E08F), (0x1E4D0, 0x1E5FF),
    (0x1F000, 0x1FBFF), (0x1F300, 0x1F6FF), (0x1F900, 0x1FAFF), (0x20000, 0x20100), (0x2EBF0, 0x2EC20),
    (0x31350, 0x31400), (0xE0000, 0xE01EF), (0xF0000, 0xF00FF), (0x10FFF0, 0x10FFFF),
]
ODD = [
    "\u0000", "\u0001", "\u0007", "\u000b", "\u000c", "\u001b", "\u007f", "\u0080", "\u0085", "\u00a0", "\u00ad",
    "\u034f", "\u061c", "\u1680", "\u180e", "\u2000", "\u2003", "\u200a", "\u200b", "\u200c", "\u200d", "\u200e",
    "\u200f", "\u2028", "\u2029", "\u202a", "\u202e", "\u202f", "\u205f", "\u2060", "\u2066", "\u3000", "\ud7ff",
    "\ue000", "\ufdd0", "\ufdef", "\ufeff", "\ufffd", "\ufffe", "\uffff", "\U0001fffe", "\U0010ffff", "ſ", "K", "ß",
    "ẞ", "İ", "ı", "ﬁ", "ﬅ", "Å", "Ω", "½", "²", "Ⅷ", "①", "٣", "໓", "〇", "㊿", "e\u0301", "o\u0302\u0323",
    "q\u0307\u0323", "\u0344", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0958", "\u0f73", "\U0001d15e", "\ufb1d",
    "\u0308\u0301", "a\u0315\u0300\u05ae\u0062", "\u16ff0\u0334", "ㅤ", "\u3164", "\ufffc",
]
CONTRACTIONS = ["'s", "'S", "'t", "'T", "'re", "'RE", "'rE", "'ve", "'Ve", "'m", "'M", "'ll", "'LL", "'Ll", "'lL", "'d",
                "'D", "'ſ", "’s", "''s", "' s", "'", "n't", "'sx", "'lls"]
WORDS = ("the of light house wind water tower I we they don can't WORLD Hello CamelCase snake_case kebab-case x1 a1b2 "
         "naïve façade größer ÉCOLE été señor straße пример Привет слово έτοιμο λόγος مرحبا سلام שלום नमस्ते दुनिया สวัสดี "
         "你好 世界 こんにちは カタカナ 안녕하세요 세계 tiếng Việt İstanbul ırmak").split()
CODE = ["{", "}", "();", "[i]", "->", "=>", "==", "!=", "&&", "||", "::", "//", "/*", "*/", "#include <x>", "\\n", "\\",
        "\"", "`", "~", "^", "%d", "$x", "@a", "_", "__init__", "0x1F", "1e-9", "a.b.c", "</div>", "&amp;", "...", "…",
        "!?", "—", "“”", "«»", "(", ")", "x+=1;", "\r\n", ";\r\n\r\n", "}\n\n", ":\n    "]
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>",
         "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜end▁of▁sentence｜>", "<tool_call>", "</tool_call>", "<|left|>",
         "<|right|>", "<|both|>", "<|word|>", "<|im_start", "<|", "|>", "<｜", "Ångström", "A\u030angström", "[PAD]",
         "lamp", "  ", "    "]


def random_piece(r):
    kind = r.randrange(14)
    if kind <= 2:
        return r.choice(WORDS)
    if kind == 3:
        lo, hi = r.choice(SCRIPTS)
        return "".join(chr(r.randint(lo, hi)) for _ in range(r.randint(1, 8)))
    if kind == 4:
        return r.choice(ODD) * r.choice([1, 1, 1, 2, 3])
    if kind == 5:
        return r.choice(CONTRACTIONS)
    if kind == 6:
        return r.choice(CODE)
    if kind == 7:
        return "".join(r.choice("0123456789") for _ in range(r.randint(1, 9)))
    if kind == 8:
        return r.choice([" ", "\n", "\t", "\r", "\r\n", "\u00a0", "\u3000"]) * r.randint(1, 6)
    if kind == 9:
        return "".join(r.choice([" ", "\n", "\t", " "]) for _ in range(r.randint(1, 7)))
    if kind == 10:
        return r.choice(MARKS)
    if kind == 11:
        words = r.choice(SENTENCES).split(" ")
        start = r.randrange(len(words))
        return " ".join(words[start:start + r.randint(1, 5)])
    if kind == 12:
        code = r.choice([r.randrange(0xD800), r.randrange(0xE000, 0x110000), r.randrange(0x3000)])
        return chr(code if not 0xD800 <= code < 0xE000 else 0x41)
    return r.choice("aAbß<>|x ")  * r.choice([1, 2, 3, 17])


def random_string(r):
    n = r.choice([1, 2, 2, 3, 3, 4, 5, 6]) if r.random() < 0.97 else r.randint(10, 30)
    glue = r.choice(["", "", " ", " ", r.choice(["\n", "  ", "\t"])])
    return glue.join(random_piece(r) for _ in range(n))


def strings():
    r = random.Random(20240229)
    seen = dict.fromkeys(["", " ", "\n", "a", "'", "\u0000"] + SENTENCES + ODD + CONTRACTIONS + MARKS + CODE)
    for word in WORDS:
        seen[word.upper() + "'LL " + word] = None
    seen["z" * 700 + "lighthouse" * 40] = None
    seen[" " * 300 + "\n" * 50 + "x" + "\t " * 60] = None
    while len(seen) < STRINGS:
        seen[random_string(r)] = None
    return list(seen)


def corpus():
    r = random.Random(7)
    lines = []
    for _ in range(700):
        words = " ".join(r.choice(SENTENCES) for _ in range(2))
        lines.append(words if r.random() < 0.7 else words + " " + " ".join(r.choice(WORDS) for _ in range(6)))
    return lines


def train(normalizer, pre_tokenizer, size, specials=(), **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(prefix=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def gpt2():
    tokenizer = train(None, byte_level(regex=True), 1300, ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def gpt2_prefix():
    tokenizer = train(None, byte_level(prefix=True, regex=True), 900)
    tokenizer.add_special_tokens([AddedToken("[PAD]", special=True), AddedToken("<|im_end|>", special=True, lstrip=True)])
    tokenizer.add_tokens([AddedToken("lamp", normalized=True, single_word=True), AddedToken("  ", normalized=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("[PAD]", 900), ("<|im_end|>", 901))
    return tokenizer


def llama3():
    tokenizer = train(None, pre_tokenizers.Sequence([isolated(LLAMA3), byte_level()]), 1200, ignore_merges=True)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|endoftext|>", "<|start_header_id|>", "<|eot_id|>"])
    template = processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B",
                                             special_tokens=[("<|begin_of_text|>", 1200)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return tokenizer


def qwen2():
    tokenizer = train(normalizers.NFC(), pre_tokenizers.Sequence([isolated(QWEN2), byte_level()]), 1200)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False),
                          AddedToken("Ångström", normalized=True)])
    return tokenizer


def deepseek():
    pre = pre_tokenizers.Sequence([isolated(r"\p{N}{1,3}"), isolated(DEEPSEEK_CJK), isolated(DEEPSEEK), byte_level()])
    tokenizer = train(normalizers.Sequence([]), pre, 1300, ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"])
    tokenizer.add_tokens([
        AddedToken("<｜User｜>", normalized=False), AddedToken("<|left|>", lstrip=True, normalized=False),
        AddedToken("<|right|>", rstrip=True, normalized=False),
        AddedToken("<|both|>", lstrip=True, rstrip=True, normalized=True, special=True),
        AddedToken("<|word|>", single_word=True, normalized=False), AddedToken("    ", normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<｜begin▁of▁sentence｜> $A <｜end▁of▁sentence｜>", pair="$A $B",
        special_tokens=[("<｜begin▁of▁sentence｜>", 0), ("<｜end▁of▁sentence｜>", 1)])
    return tokenizer


def o200k():
    tokenizer = train(None, pre_tokenizers.Sequence([isolated(O200K), byte_level()]), 1000, ["<|endoftext|>"],
                      ignore_merges=True)
    return tokenizer


def starcoder():
    pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(regex=True)])
    return train(None, pre, 700, ["<|endoftext|>"])


def odd():
    """Steps no known model combines: every split behavior, String patterns, NFKC, Replace and Prepend."""
    split = pre_tokenizers.Split
    pre = pre_tokenizers.Sequence([
        split("e", "merged_with_previous"), split(Regex(r"\s"), "merged_with_next"), pre_tokenizers.Punctuation("isolated"),
        split(Regex(r"\p{Lu}|[\p{Nd}&&[^5]]|x*"), "contiguous"), split(Regex(r"[^\p{C}]+"), "removed", invert=True),
        split(Regex(r"(?m)\w.{2}$|\bt(?=he)|[[:upper:]]{2}+"), "isolated"), pre_tokenizers.Digits(individual_digits=False),
        byte_level(prefix=True)])
    norm = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("ll", "L"),
                                 normalizers.Replace(Regex(r"\s{2,}"), "␣ "), normalizers.Prepend("_")])
    tokenizer = train(norm, pre, 800, unk_token="[PAD]")
    tokenizer.add_tokens([AddedToken("<|both|>", rstrip=True), AddedToken("Ångström", normalized=True)])
    return tokenizer


def sentencepiece(pre_tokenizer, normalizer):
    """As files of SentencePiece's kind are converted: <unk>, <s>, </s>, a token for each byte, then what was trained."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=900, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    first = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    vocab = {t: i for i, t in enumerate(first + sorted(model["vocab"], key=model["vocab"].get))}
    merges = [tuple(m) for m in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens(first[:3])
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(content=" ", left=1, right=0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def llama2():
    return sentencepiece(None, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))


def mistral():
    return sentencepiece(pre_tokenizers.Metaspace(prepend_scheme="first", split=False), None)


KINDS = {"gpt2": gpt2, "gpt2_prefix": gpt2_prefix, "llama3": llama3, "qwen2": qwen2, "deepseek": deepseek, "o200k": o200k,
         "starcoder": starcoder, "odd": odd, "llama2": llama2, "mistral": mistral}


def as_old_file(document):
    """GPT-2's own file: merges as strings, no type of the model, no use_regex."""
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    del document["model"]["type"]
    document["model"]["continuing_subword_prefix"] = ""
    document["model"]["end_of_word_suffix"] = ""
    del document["pre_tokenizer"]["use_regex"]


def fnv(ids, state=0xCBF29CE484222325):
    for value in [len(ids)] + ids:
        for byte in value.to_bytes(4, "little"):
            state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


def block_hashes(answers):
    hashes = []
    for start in range(0, len(answers), BLOCK):
        state = 0xCBF29CE484222325
        for ids in answers[start:start + BLOCK]:
            state = fnv(ids, state)
        hashes.append(f"{state:016x}")
    return hashes


def golden(name, path, texts):
    tokenizer = Tokenizer.from_file(str(ROOT / path))
    plain = [tokenizer.encode(s, add_special_tokens=False).ids for s in texts]
    r = random.Random(name)
    full = []
    for index in sorted(r.sample(range(len(texts)), FULL)):
        full.append({"string": index, "ids": plain[index],
                     "with_special": tokenizer.encode(texts[index], add_special_tokens=True).ids,
                     "text": tokenizer.decode(plain[index], skip_special_tokens=False),
                     "text_skipped": tokenizer.decode(plain[index], skip_special_tokens=True)})
    decode = []
    top = tokenizer.get_vocab_size(with_added_tokens=True)
    for _ in range(FULL):
        ids = [r.randrange(top + 3) if r.random() < 0.9 else r.choice([0, 1, top - 1, top - 2, top + 100])
               for _ in range(r.randint(1, 12))]
        # The package makes one U+FFFD of each byte of a run of byte tokens that is no text, Fovea one of each maximal subpart.
        ids = [i for i in ids if not re.fullmatch("<0x[89A-F].>", tokenizer.id_to_token(i) or "")] or [0]
        decode.append({"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False),
                       "text_skipped": tokenizer.decode(ids, skip_special_tokens=True)})
    tokenizer.encode_special_tokens = True
    as_text = [tokenizer.encode(s, add_special_tokens=False).ids for s in texts]
    return {"tokenizer": path, "block": BLOCK, "plain": block_hashes(plain), "special_as_text": block_hashes(as_text),
            "full": full, "decode": decode}


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--differences", action="store_true")
    parser.add_argument("--kinds", help="of KINDS, with commas between")
    args = parser.parse_args()
    if args.differences:
        return differences()
    texts = strings()
    OUT.mkdir(parents=True, exist_ok=True)
    if args.kinds:
        texts = [json.loads(line) for line in (OUT / "strings.jsonl").read_text(encoding="utf-8").split("\n") if line]
    else:
        (OUT / "strings.jsonl").write_text(
            "".join(json.dumps(s, ensure_ascii=False) + "\n" for s in texts), encoding="utf-8")
    paths = {} if args.kinds else {"tiny_gqa": "models/tiny-gqa/tokenizer.json"}
    for kind, make in KINDS.items():
        if args.kinds and kind not in args.kinds.split(","):
            continue
        document = json.loads(make().to_str())
        if kind == "gpt2":
            as_old_file(document)
        paths[kind] = f"tests/data/tokenizer/{kind}/tokenizer.json"
        write(ROOT / paths[kind], document)
    for kind, path in paths.items():
        write(OUT / f"{kind}.golden.json", golden(kind, path, texts))


def differences():
    """For each property the code points that match, as ranges; and what each normal form does to single code points."""
    codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    everything = "".join(map(chr, codes))

    def ranges(found):
        out = []
        for c in found:
            if out and out[-1][1] == c - 1:
                out[-1][1] = c
            else:
                out.append([c, c])
        return " ".join(f"{a:X}" if a == b else f"{a:X}-{b:X}" for a, b in out)

    names = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Han Hiragana Katakana " \
            "Hangul Latin Greek Cyrillic Arabic Hebrew Thai Devanagari Common Inherited Emoji Alphabetic"
    for pattern in [rf"\p{{{n}}}" for n in names.split()] + [r"\s", r"\w", r"\d"]:
        rest = pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(everything)
        unmatched = {c for _, (a, b) in rest for c in codes[a:b]}
        print(pattern, ranges(c for c in codes if c not in unmatched))
    for form in (normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD()):
        print(form, ranges(c for c in codes if form.normalize_str(chr(c)) != chr(c)))


if __name__ == "__main__":
    main()
