"""The calculator says what the formulas say, moves with its sliders, and needs no widget."""

from __future__ import annotations

import sys

import pytest
from rank_by_rank.lesson_06 import scaling
from rank_by_rank.lesson_06.calculator import Setting, calculator, speed_up_figure, summary

from tools.lint_lessons import pictures_without_words_in_text

LAN = Setting(
    parameters=250_000, batch=10, sample_seconds=1e-3, latency=1e-3, bandwidth=1e8, ranks=4
)


def test_numbers_equal_the_formulas():
    # 1 MB over 4 ranks: recursive doubling 2 (1 + 10) ms, ring 6 + 15 ms, Rabenseifner 4 + 15 ms.
    assert LAN.comp_seconds == pytest.approx(0.010)
    assert LAN.sync_seconds(4) == pytest.approx(0.019)
    assert LAN.sync_seconds(1) == 0.0
    assert LAN.exposed_seconds(4) == pytest.approx(0.019 - 0.020 / 3)
    text = summary(LAN)
    assert "T_comp = 10 ms, T_sync = 19 ms: T_sync / T_comp = 1.9, R - 1 = 3: it pays" in text
    assert f"speed-up {scaling.speed_up(4, 0.010, 0.019):.3g} (efficiency 34%)" in text
    # Two ranks: 1 + 10 ms of sending for 10 ms of computing; three: the fold, or the ring's 17.3.
    assert "the smallest R that pays is 3" in text


def test_summary_reports_settings_that_never_pay():
    hopeless = Setting(batch=1, sample_seconds=1e-9, bandwidth=1e5, latency=1.0, ranks=2)
    assert "it does not pay" in summary(hopeless)
    assert "no R up to 4,096 pays" in summary(hopeless)


def test_calculator_is_a_picture_without_interaction(monkeypatch):
    for interactive in (None, False):  # IPP_NONINTERACTIVE is set for all tests
        shown = calculator(interactive, ranks=8)._repr_mimebundle_()
        assert shown["text/html"].startswith("<img")
        assert not list(pictures_without_words_in_text(shown["text/html"]))
        assert "R - 1 = 7" in shown["text/html"]
        assert "R - 1 = 7" in shown["text/plain"]
    monkeypatch.setenv("IPP_NONINTERACTIVE", "0")
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert "text/html" in calculator()._repr_mimebundle_()


def test_slider_updates_picture_and_text(monkeypatch):
    monkeypatch.setenv("IPP_NONINTERACTIVE", "0")
    widget = calculator(ranks=8)
    *sliders, words, picture = widget.children
    assert [slider.description for slider in sliders] == [
        "ranks R",
        "parameters",
        "samples a rank",
        "seconds a sample",
        "latency (s)",
        "bandwidth (bytes/s)",
    ]
    seen = {picture.value}
    for slider, value in zip(sliders, (16, 1e9, 64, 1e-3, 1e-3, 1e7), strict=True):
        slider.value = value
        seen.add(picture.value)
    assert len(seen) == 7
    now = Setting(sliders[1].value, 64, 1e-3, 1e-3, 1e7, 16)
    assert words.value == f"<pre>{summary(now)}</pre>"
    assert f'alt="{speed_up_figure(now).alt}"' in picture.value
