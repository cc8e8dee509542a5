"""Base64 in any spelling: short texts are put into one form on the event loop, long ones where they are loaded and only if need be."""

from types import SimpleNamespace

import pytest

from sglang_gemma4.serving.media import addresses, base64_text, sent, served


def test_the_event_loop_looks_through_no_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def scanned(text: str) -> None:
        assert len(text) <= base64_text.SCANNED

    monkeypatch.setattr(base64_text, "standard", scanned)
    monkeypatch.setattr(base64_text, "_data", scanned)
    payload = "AB-_" * base64_text.SCANNED
    for given, made in (
        (f"data:image/png;base64,{payload}", f"data:image/png;base64,{payload}"),
        (f"DATA: image/png;base64 ,{payload}", f"data:image/png;base64,{payload}"),
        (payload, f"data:;base64,{payload}"),
    ):
        request = SimpleNamespace(image_data=[given])
        addresses.judge(request, False, {})
        assert request.image_data == [made]
        assert sent.tidy([made])[0] is made


def test_what_cannot_be_respelled() -> None:
    long = "A" * base64_text.SCANNED
    for text in ("A-", f"http://a/{long}-", f"file:{long}-", f"data:;base64,{long}", f"data:;base64,{long}*", f"{long}*", f"data:{long}"):
        assert base64_text.respelled(text) is None, text[:20]
    assert base64_text.respelled(f"data:;base64,{long}-A") == f"data:;base64,{long}+A=="


def test_long_base64_of_other_models_is_stocks(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(source: str) -> str:
        if "-" in source:
            raise ValueError("stock's")
        return source

    text = "data:;base64," + "A" * base64_text.SCANNED + "-AAA"
    monkeypatch.setattr(served, "is_gemma4", lambda: False)
    with pytest.raises(ValueError, match="stock's"):
        sent.load(load, text)
    monkeypatch.setattr(served, "is_gemma4", lambda: True)
    assert sent.load(load, text) == text.replace("-", "+")


def test_what_is_no_base64_stays() -> None:
    for text in ("data:image/svg+xml,<svg/>", "data:,", "data:;base64,AAAAA", "data:image/png;base64,A*A", "/etc/passwd", "a.png", ""):
        assert base64_text.address(text) == text
        assert sent.tidy(text) == text
    assert base64_text.address("HTTPS://Host/Path.PNG?A=B") == "https://Host/Path.PNG?A=B"
    assert base64_text.standard("AAAAA") is None
    assert base64_text.standard("") is None
