"""What a step takes on one worker, learned from its own clock: a fixed part, a part per row, a part per
token.
"""

from __future__ import annotations

FORGETTING = 0.97
"""Weight of an observation against the next one: about the last 30 steps count."""
PULL = 1e-3
"""Weight of what was believed before, where the last steps say nothing."""
FIRST_TOKENS = 64
"""Prompt tokens that are tried before anything is known; from there at most twice the most seen."""
_ROWS, _TOKENS = 64.0, 256.0
"""Units that bring the three parts to the same size."""


class StepCost:
    """Seconds ≈ fixed + per_row × rows that decode + per_token × prompt tokens; least squares that forget."""

    __slots__ = ("_belief", "_is_solved", "_matrix", "_vector", "most_rows", "most_tokens")

    def __init__(self) -> None:
        self._belief = [0.0, 0.0, 0.0]
        self._matrix = [[0.0] * 3 for _ in range(3)]
        self._vector = [0.0] * 3
        self._is_solved = False
        """Whether what is believed comes from all that was observed."""
        self.most_rows = 0
        """Most rows that decoded in a measured step."""
        self.most_tokens = 0
        """Most prompt tokens that a measured step had."""

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """A step with so many decoding rows and prompt tokens took so long on the worker."""
        if seconds <= 0:
            return
        self.most_rows = max(self.most_rows, rows)
        self.most_tokens = max(self.most_tokens, tokens)
        self._is_solved = False
        parts = (1.0, rows / _ROWS, tokens / _TOKENS)
        for i in range(3):
            for j in range(3):
                self._matrix[i][j] = FORGETTING * self._matrix[i][j] + parts[i] * parts[j]
            self._vector[i] = FORGETTING * self._vector[i] + parts[i] * seconds

    def seconds(self, rows: int) -> float:
        """What a step takes in which so many rows decode and nothing else is computed; 0 before any."""
        fixed, per_row, _ = self._solve()
        return fixed + per_row * rows / _ROWS

    def tokens_within(self, seconds: float, rows: int) -> int:
        """Prompt tokens with which a step beside so many decoding rows takes as long; may be below 0."""
        fixed, per_row, per_token = self._solve()
        most = max(FIRST_TOKENS, 2 * self.most_tokens)
        left = seconds - fixed - per_row * rows / _ROWS
        if per_token <= 0:
            return most if left > 0 else 0
        return min(most, int(left / per_token * _TOKENS))

    def _solve(self) -> list[float]:
        """The parts that fit best, none below 0; those that the last steps leave open stay as they were."""
        if self._is_solved:
            return self._belief
        matrix = [[*row, value] for row, value in zip(self._matrix, self._vector, strict=True)]
        for i in range(3):
            matrix[i][i] += PULL
            matrix[i][3] += PULL * self._belief[i]
        for i in range(3):  # symmetric and positive definite: no pivot is needed
            for j in range(i + 1, 3):
                factor = matrix[j][i] / matrix[i][i]
                for k in range(i, 4):
                    matrix[j][k] -= factor * matrix[i][k]
        parts = [0.0, 0.0, 0.0]
        for i in (2, 1, 0):
            parts[i] = (matrix[i][3] - sum(matrix[i][k] * parts[k] for k in range(i + 1, 3))) / matrix[i][i]
        self._belief = [max(0.0, part) for part in parts]
        self._is_solved = True
        return self._belief
