"""Arguments of SGLang's and vLLM's own tests, with what is read of them; ``published_answers`` names the sources."""

from typing import Any

Q = '<|"|>'


def strings(**values: str) -> str:
    return ",".join(f"{key}:{Q}{value}{Q}" for key, value in values.items())


HTML = (
    "<!DOCTYPE html>\n"
    + '<html lang="zh-CN">\n<head>\n    <meta charset="UTF-8">\n    <meta name="viewport" content="width=device-width">\n'
)
ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("   ", {}),
    (strings(location="Paris"), {"location": "Paris"}),
    (strings(location="Paris, France"), {"location": "Paris, France"}),
    (strings(location="San Francisco", unit="celsius"), {"location": "San Francisco", "unit": "celsius"}),
    (strings(city="Beijing") + ", " + strings(unit="celsius"), {"city": "Beijing", "unit": "celsius"}),
    ("count:42", {"count": 42}),
    ("count:  42 ", {"count": 42}),
    ("count:-7", {"count": -7}),
    ("score:3.14", {"score": 3.14}),
    ("score:-0.5", {"score": -0.5}),
    ("flag:true,other:false", {"flag": True, "other": False}),
    ("flag:hello", {"flag": "hello"}),
    ("flag:", {"flag": ""}),
    ("flag:   ", {"flag": ""}),
    ("param:null", {"param": None}),
    (strings(name="test") + ",count:42,active:true,score:3.14", {"name": "test", "count": 42, "active": True, "score": 3.14}),
    ("temperature:25, windy:true, rainy:false", {"temperature": 25, "windy": True, "rainy": False}),
    (f"nested:{{{strings(inner='value')}}}", {"nested": {"inner": "value"}}),
    ("location:{lat:39.9, lng:116.4}", {"location": {"lat": 39.9, "lng": 116.4}}),
    (f"outer:{{{strings(inner='val')},num:5}}", {"outer": {"inner": "val", "num": 5}}),
    (f"outer:{{inner:{{{strings(v='x')}}}, list:[1, 2]}}", {"outer": {"inner": {"v": "x"}, "list": [1, 2]}}),
    (f"record_map:{{{Q}3{Q}:{Q}new text{Q}}}", {"record_map": {"3": "new text"}}),
    (f"outer:{{inner:{{{Q}3{Q}:{Q}new text{Q}}}}}", {"outer": {"inner": {"3": "new text"}}}),
    (f"items:[{Q}a{Q},{Q}b{Q}]", {"items": ["a", "b"]}),
    (f"items:[{Q}a{Q}, {Q}b{Q}]", {"items": ["a", "b"]}),
    ("items:[]", {"items": []}),
    ("items:[   ]", {"items": []}),
    ("items:[42,true,3.14]", {"items": [42, True, 3.14]}),
    ("items:[42,true,114.514]", {"items": [42, True, 114.514]}),
    ("items:[1, 2, 3]", {"items": [1, 2, 3]}),
    ("items:[true, false]", {"items": [True, False]}),
    ("items:[{lat:39.9, lng:116.4}]", {"items": [{"lat": 39.9, "lng": 116.4}]}),
    ("items:[[1, 2], [3]]", {"items": [[1, 2], [3]]}),
    (f"items:[1, {Q}x{Q}, {{k:v}}]", {"items": [1, "x", {"k": "v"}]}),
    (f"items:[{Q}hello{Q}, 42, true, {{key:{Q}val{Q}}}]", {"items": ["hello", 42, True, {"key": "val"}]}),
    (f"items:[[{Q}a]b{Q},{Q}c{Q}],{Q}tail{Q}]", {"items": [["a]b", "c"], "tail"]}),
    (f"items:[[{Q}a[b{Q},{Q}c{Q}],{Q}tail{Q}]", {"items": [["a[b", "c"], "tail"]}),
    (f"items:[[{Q}a[b]c{Q},{Q}d{Q}]]", {"items": [["a[b]c", "d"]]}),
    (f"items:[{Q}abc", {"items": ["abc"]}),
    (f"key:{Q}unterminated", {"key": "unterminated"}),
    (f"{strings(name='test')},flag:", {"name": "test", "flag": ""}),
    (f"{strings(name='test')},score:3.,count:1", {"name": "test", "score": 3.0, "count": 1}),
    ("left:108.,right:22.8", {"left": 108.0, "right": 22.8}),
    ("items:[42,108.,3]", {"items": [42, 108.0, 3]}),
    ("input:{all:true}", {"input": {"all": True}}),
    (strings(url="http://example.com"), {"url": "http://example.com"}),
    (strings(content='She said "hello" loudly'), {"content": 'She said "hello" loudly'}),
    (strings(path="out.html", content='<div class="main">hello</div>'), {"path": "out.html", "content": '<div class="main">hello</div>'}),
    (strings(content="<html><div>{test}</div></html>"), {"content": "<html><div>{test}</div></html>"}),
    (strings(code='function() { return "ok"; }'), {"code": 'function() { return "ok"; }'}),
    (strings(content="line1\nline2\nline3"), {"content": "line1\nline2\nline3"}),
    (strings(path="index.html", content=HTML), {"path": "index.html", "content": HTML}),
    (strings(k="}}}}}"), {"k": "}}}}}"}),
    (strings(s="has{}[]braces"), {"s": "has{}[]braces"}),
    (strings(k="v") + ",", {"k": "v"}),
    ("a:1," + strings(b="x"), {"a": 1, "b": "x"}),
    (strings(content="literal }<tool_call|> inside"), {"content": "literal }<tool_call|> inside"}),
    (strings(content="abcdefghij" * 50), {"content": "abcdefghij" * 50}),
    ("city: 'Paris'", {"city": "Paris"}),
    (",", {}),
    # an opening delimiter is missing
    (f"query:weather in Tokyo{Q}", {"query": "weather in Tokyo"}),
    (f"query:Paris, France{Q},limit:5", {"query": "Paris, France", "limit": 5}),
    (f"filters:{{city:Tokyo{Q}}},{strings(query='x')}", {"filters": {"city": "Tokyo"}, "query": "x"}),
    (f"query:[{Q}a{Q},b{Q}]", {"query": ["a", "b"]}),
    (f"limit:5,exact:true,{strings(query='Note: a, b')}", {"limit": 5, "exact": True, "query": "Note: a, b"}),
]
WORD, REJECTED = (
    "they drop the word behind a stray bracket",
    "vLLM's Rust parser rejects the call, which then is text: we read what is there",
)
ARGUMENTS_OTHERWISE: list[tuple[str, dict[str, Any], str]] = [
    ("items:[42,]trailing", {"items": [42], "trailing": ""}, WORD),
    (":[t:[]", {"": ["t:["]}, "vLLM asks only that reading ends"),
    (f"query:[ k:{Q}1]]", {"query": ["k:", 1]}, "SGLang asks only that reading ends"),
    ("bad:]", {"bad": ""}, REJECTED),
    (":", {"": ""}, REJECTED),
    (f"key:a{Q}b", {"key": "a", "b": ""}, "vLLM's Rust parser keeps the delimiter in the value"),
    (f"key:a{Q}b{Q}c", {"key": "a", "b": "", "c": ""}, "vLLM's Rust parser keeps the delimiters in the value"),
    ("key:a{b", {"key": "a{b"}, ""),
    ("key:a[b", {"key": "a[b"}, ""),
    ("key:a]b", {"key": "a", "b": ""}, REJECTED),
    ("list:[a{b,c]", {"list": ["a{b", "c"]}, ""),
    ("a:{", {"a": {}}, REJECTED),
    ("a:[", {"a": []}, REJECTED),
    (f"a:{Q}", {"a": ""}, REJECTED),
]
