"""A pytest plugin: a test function runs on several ranks, and what goes wrong has its rank.

``@pytest.mark.ranks(4)`` is all that a test needs; see "Testing your own distributed code" in the
package's README. Only pytest imports this folder. In its process :mod:`.plugin` picks the marked
tests, :mod:`.crews` keeps ranks for them, :mod:`.failure_text` says what became of each rank.
In the ranks' processes :mod:`.on_rank` runs them.
"""
