"""The figures of lesson 10b: layers and sequences in slices, bytes on a rank."""

import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from rank_by_rank.lesson_10b import figures

HELD = {"all": (8.0, 8.0, 16.0), "parts": (2.0, 2.0, 4.0)}


def bars():
    return figures.bytes_on_each_rank(HELD, 8.0)


def lines():
    return figures.gpus_needed([1, 4, 16], {"one": [100.0, 90.0, 80.0], "other": [100, 25, 6]})


DRAWN = [figures.sliced_mlp, figures.sequence_in_slices, figures.product_in_chunks, bars, lines]


@pytest.mark.parametrize("make", DRAWN)
def test_figures_have_alt_text_and_are_deterministic(make) -> None:
    figure = make()
    ElementTree.fromstring(figure.svg)
    assert len(figure.alt.split()) > 10
    assert make().svg == figure.svg


def test_a_sequence_has_a_part_for_each_rank() -> None:
    four, two = figures.sequence_in_slices(4).svg, figures.sequence_in_slices(2).svg
    assert four.count("<rect") - two.count("<rect") == 4 * 2


def test_product_in_chunks_hides_the_shorter_time() -> None:
    assert "they take 9 ms; chunk by chunk, each multiplied" in figures.product_in_chunks().alt
    assert figures.product_in_chunks().alt.endswith("while the next arrives, 6 ms.")
    assert figures.product_in_chunks(4, 2.0, 1.5).alt.endswith("while the next arrives, 7.5 ms.")


@pytest.mark.parametrize(("transfer", "product"), [(1.0, 1.5), (2.0, 1.5)])
def test_product_in_chunks_multiplies_only_arrived_chunks(transfer: float, product: float) -> None:
    tree = ElementTree.fromstring(figures.product_in_chunks(4, transfer, product).svg)
    lanes: dict[float, dict[str, tuple[float, float]]] = {}  # by height: owner, start and end
    for box in (one.attrib for one in tree.iter() if one.tag.endswith("rect")):
        if box["height"] == "30.0" and "hatch" not in box["fill"]:
            x, y, width = (float(box[name]) for name in ("x", "y", "width"))
            lanes.setdefault(y, {})[box["stroke"]] = x, x + width
    ends = []
    for link, processor in ((38, 72), (146, 180)):
        arrives, multiplied = lanes[link], lanes[processor]
        assert (len(arrives), len(multiplied)) == (3, 4)
        assert all(end < multiplied[owner][0] for owner, (_, end) in arrives.items())
        for lane in (sorted(arrives.values()), sorted(multiplied.values())):
            assert all(end < start for (_, end), (start, _) in pairwise(lane))
        ends.append(max(end for _, end in multiplied.values()))
        begin = sorted(start for start, _ in multiplied.values())[:3]
        at_once = begin == pytest.approx(sorted(start for start, _ in arrives.values()))
        assert at_once == (link == 146)  # each chunk arrives during the product before, or not
    serial, chunked = 3 * transfer + 4 * product, product + 3 * max(transfer, product)
    assert (ends[1] - 104) / (ends[0] - 104) == pytest.approx(chunked / serial, rel=0.01)


def test_a_product_in_chunks_draws_waiting_only_where_a_rank_waits() -> None:
    def waits(svg: str) -> int:
        return svg.count('fill="url(#hatch')

    assert waits(figures.product_in_chunks(4, 1.0, 1.5).svg) == 1  # for the all-gather
    assert waits(figures.product_in_chunks(4, 2.0, 1.5).svg) == 1 + 3  # and for each chunk


def test_bad_arguments_are_rejected() -> None:
    with pytest.raises(ValueError, match="1 ranks, times 1 and"):
        figures.product_in_chunks(1)
    with pytest.raises(ValueError, match="parts: three numbers"):
        figures.bytes_on_each_rank({"parts": (1.0, 2.0)}, 1.0)
    with pytest.raises(ValueError, match="one: 2 numbers for 3"):
        figures.gpus_needed([1, 2, 3], {"one": [1.0, 2.0]})
