"""Cache memory: capacity planning, page pool and page tables, recurrent state slots. Never imports models."""
