"""A pytest plugin that runs a test function on several ranks, and reports each failure's rank.

``@pytest.mark.ranks(4)`` is all that a test needs; see "Testing your own distributed code" in the
package's README. Only pytest imports this folder. In its process :mod:`.plugin` picks the marked
tests, :mod:`.crews` keeps ranks for them, and :mod:`.failure_text` describes the outcome on each
rank. In the ranks' processes :mod:`.on_rank` runs them.
"""
