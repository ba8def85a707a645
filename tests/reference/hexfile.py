"""Reference files of words and hexadecimal floats, line by line."""
import sys


def line(values):
    return " ".join(float(v).hex() for v in values) + "\n"


def number(word):
    try:
        return float.fromhex(word)
    except ValueError:
        return None


def near(a, b, peak):
    x, y = number(a), number(b)
    return a == b or (x is not None and y is not None and abs(x - y) <= 1e-6 * max(abs(x), abs(y), peak))


def settle(path, lines):
    """Writes the file; with --check on the command line compares it instead and returns an exit status. Another processor may round otherwise:
    numbers agree within 1e-6 of themselves or of 1e-3 of their line's largest."""
    text = "".join(lines)
    if "--check" not in sys.argv[1:]:
        with open(path, "w") as file:
            file.write(text)
        return 0
    with open(path) as file:
        old = file.read().split("\n")
    new = text.split("\n")
    if len(old) != len(new):
        print(f"{path}: {len(old)} lines, now {len(new)}")
        return 1
    for i, (a, b) in enumerate(zip(old, new)):
        a, b = a.split(), b.split()
        peak = 1e-3 * max([abs(number(w) or 0) for w in a], default=0)
        if len(a) != len(b) or not all(near(x, y, peak) for x, y in zip(a, b)):
            print(f"{path}:{i + 1} differs")
            return 1
    return 0
