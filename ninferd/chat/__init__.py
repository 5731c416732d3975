"""Templates, tokenizer, detokenizer, reasoning and tool-call parsers."""
