"""Beginnings of texts of many kinds, for comparisons with transformers."""

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at",
    "The three primary colours are",
    "Dear Sir or Madam,\n\nI am writing to",
    "In 1969, the first humans",
    "Photosynthesis is the process by which",
    "1, 1, 2, 3, 5, 8,",
    "The quick brown fox",
    "To make bread you need flour,",
    "import numpy as np\n\n# compute the mean of each column\n",
    "Shakespeare wrote many plays, among them",
    "The difference between weather and climate is that",
    "Q: What is the largest planet?\nA:",
    "<html>\n<head>\n<title>",
    "A good night's sleep is important because",
    "The river flows from the mountains to",
    "Mathematics is the study of",
    "My favourite season is autumn, when",
]
