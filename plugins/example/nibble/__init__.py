"""A toy 4-bit weight format for hundredfold."""
