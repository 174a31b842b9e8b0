"""The tables and figures of the papers, each as an item: `multitudes reproduce PAPER/ITEM`.

item.py      what an item is: what the paper prints, what is run at each scale, and what differs
PAPER.py     the items of a paper, as values that import nothing heavy
work/        what they run: jobs for the sweep, and functions that return numbers and figures
catalog.py   finds items and their jobs by name
run.py       runs an item; results.py keeps its rows as JSON; comparison.py and page.py show them
"""
