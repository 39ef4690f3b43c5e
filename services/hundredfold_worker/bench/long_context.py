"""``python -m hundredfold_worker.bench.long_context``: what attention to a part is worth."""

from __future__ import annotations

from hundredfold_worker.openmp import calm_openmp

if __name__ == "__main__":
    calm_openmp()
    from hundredfold_worker.bench.long_decode import command  # torch: after how its threads wait is said

    command()
