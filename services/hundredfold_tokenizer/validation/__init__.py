"""From the contract's messages to checked, typed requests; every refusal names field, value and limit."""
