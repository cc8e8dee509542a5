"""What a server's log says that patches leave to SGLang."""

import re
from collections import defaultdict

LINE = re.compile(r"sglang-gemma4: (\w+) (?:declined|active, but|idle): (.*)")


def left(log: str) -> dict[str, str]:
    """By patch the text of its log lines, whether it is declined, active for other cases, or idle on that server."""
    found: dict[str, str] = defaultdict(str)
    for name, message in LINE.findall(log):
        found[name] += f"{message}\n"
    return found
