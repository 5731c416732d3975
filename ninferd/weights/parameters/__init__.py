"""What a model of the family consists of: its sizes, the names and shapes of its parameters, and other spellings."""
