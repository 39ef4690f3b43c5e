"""``python -m hundredfold_worker.bench.streaming [MODEL]``: what ``weight_memory`` costs."""

from __future__ import annotations

import sys

from hundredfold_worker.openmp import calm_openmp

if __name__ == "__main__":
    calm_openmp()
    from hundredfold_worker.bench.streamed_weights import main  # torch: after how its threads wait is said

    sys.exit(main(sys.argv[1:]))
