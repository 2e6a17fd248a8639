"""All seventeen rows, in order."""
from . import rows_a, rows_b, rows_c

ROWS = [*rows_a.ROWS, *rows_b.ROWS, *rows_c.ROWS]
