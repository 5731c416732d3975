"""KV pages, recurrent state slots and their budgets."""
